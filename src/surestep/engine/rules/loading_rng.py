"""How what the data draws while it is loaded is seeded, and how a run goes on in the data."""

from surestep.engine.data.stream_state import BY_STATE
from surestep.engine.plan.plan import Rule
from surestep.engine.rules.helpers import Refusals, Rows, default_value

ROWS: Rows = {
    "data.randomness": (
        Rule(
            lambda k: bool(k.task_info.draws.unseeded),
            lambda _: "not exact",
            "{k.task_info.draws.unseeded[0]} takes no seed, so no run over it can be repeated, or "
            "gone on with exactly; draw from random.Random()",
        ),
        Rule(
            lambda k: k.task_info.draws.sliced,
            lambda _: "none",
            "tensors in memory are sliced: nothing is drawn",
        ),
        Rule(
            lambda k: k.task_info.is_stream,
            lambda _: "by place",
            "each sample is read under the seed of its place in the stream",
        ),
        Rule(
            lambda k: bool(k.task_info.draws.together),
            lambda k: "by first position",
            "{k.task_info.draws.what} by the first position of the micro-batch: the same for any "
            "workers, not for another micro_batch_size{k.task_info.draws.also}",
        ),
        default_value(
            "by position", "the same for any workers and any cut{k.task_info.draws.also}"
        ),
    ),
    "data.resume": (
        Rule(
            lambda k: not k.task_info.is_stream,
            lambda _: "by position",
            "nothing that was done is loaded again",
        ),
        Rule(
            lambda k: k["data.shuffle_buffer"] is not None,
            lambda _: "by reading again",
            "what waits in data.shuffle_buffer is not in the stream's state",
        ),
        Rule(
            lambda k: bool(k.task_info.why_read_again),
            lambda _: "by reading again",
            "{k.task_info.why_read_again}",
        ),
        default_value(BY_STATE, "the stream's own: tried on its first samples"),
    ),
}

REFUSALS: Refusals = {}
