"""How what the data draws while it is loaded is seeded, and how a run goes on in the data."""

from surestep.engine.data.own_state import BY_STATE
from surestep.engine.plan import Row
from surestep.engine.table.rows import Refusals, Rows, default

ROWS: Rows = {
    "data.randomness": (
        Row(
            lambda k: bool(k.given.draws.unseeded),
            lambda _: "not exact",
            "{k.given.draws.unseeded[0]} takes no seed, so no run over it can be repeated, or gone "
            "on with exactly; draw from random.Random()",
        ),
        Row(
            lambda k: k.given.draws.sliced,
            lambda _: "none",
            "tensors in memory are sliced: nothing is drawn",
        ),
        Row(
            lambda k: k.given.is_stream,
            lambda _: "by place",
            "each sample is read under the seed of its place in the stream",
        ),
        Row(
            lambda k: bool(k.given.draws.together),
            lambda k: "by first position",
            "{k.given.draws.what} by the first position of the micro-batch: the same for any "
            "workers, not for another micro_batch_size{k.given.draws.also}",
        ),
        default("by position", "the same for any workers and any cut{k.given.draws.also}"),
    ),
    "data.resume": (
        Row(
            lambda k: not k.given.is_stream,
            lambda _: "by position",
            "nothing that was done is loaded again",
        ),
        Row(
            lambda k: k["data.shuffle_buffer"] is not None,
            lambda _: "by reading again",
            "what waits in data.shuffle_buffer is not in the stream's state",
        ),
        Row(
            lambda k: bool(k.given.why_read_again),
            lambda _: "by reading again",
            "{k.given.why_read_again}",
        ),
        default(BY_STATE, "the stream's own: tried on its first samples"),
    ),
}

REFUSALS: Refusals = {}
