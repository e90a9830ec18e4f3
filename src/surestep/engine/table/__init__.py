"""The rows that decide: for each option (condition, choice, reason); the first that holds.

In order of dependence: a row may look at what stands above it. Beside the rows of an option stand
its refusals: the wishes that cannot be kept, asked before the rows are.
"""

from surestep.engine.plan import Refusal, Row
from surestep.engine.table import (
    average,
    data,
    deepspeed,
    evaluation,
    fsdp,
    loss,
    memory,
    optim,
    parallel,
    randomness,
    record,
    run,
    schedule,
    speed,
    step,
)

PARTS = (
    run,
    parallel,
    fsdp,
    loss,
    data,
    randomness,
    optim,
    schedule,
    step,
    memory,
    speed,
    evaluation,
    average,
    record,
    deepspeed,
)
TABLE: dict[str, tuple[Row, ...]] = {
    option: rows for part in PARTS for option, rows in part.ROWS.items()
}
REFUSALS: dict[str, tuple[Refusal, ...]] = {
    option: refusals for part in PARTS for option, refusals in part.REFUSALS.items()
}
