"""What is kept in memory between forward and backward."""

from surestep.engine.table.rows import Refusals, Rows, default, said

ROWS: Rows = {
    "activation_checkpointing": (
        said("activation_checkpointing"),
        default("off", "nothing is computed twice; the same numbers either way"),
    ),
}

REFUSALS: Refusals = {}
