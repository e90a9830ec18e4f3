"""The rows that decide: for each option (condition, choice, reason); the first that holds.

In order of dependence: a row may look at what stands above it. Beside the rows of an option stand
its refusals: the wishes that cannot be kept, asked before the rows are.
"""

from surestep.engine.plan.plan import Constraint, Rule
from surestep.engine.rules import (
    activation_checkpointing,
    average,
    checkpoint,
    data,
    deepspeed,
    fsdp,
    loading_rng,
    loss,
    optim,
    parallel,
    performance,
    run,
    schedule,
    step,
    validation,
)

PARTS = (
    run,
    parallel,
    fsdp,
    loss,
    data,
    loading_rng,
    optim,
    schedule,
    step,
    activation_checkpointing,
    performance,
    validation,
    average,
    checkpoint,
    deepspeed,
)
TABLE: dict[str, tuple[Rule, ...]] = {
    option: rows for part in PARTS for option, rows in part.ROWS.items()
}
REFUSALS: dict[str, tuple[Constraint, ...]] = {
    option: refusals for part in PARTS for option, refusals in part.REFUSALS.items()
}
