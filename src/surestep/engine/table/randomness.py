"""How what the data draws while it is loaded is seeded."""

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
}

REFUSALS: Refusals = {}
