"""What is kept in memory between forward and backward."""

from surestep.engine.rules.helpers import Refusals, Rows, default_value, user_value

ROWS: Rows = {
    "activation_checkpointing": (
        user_value("activation_checkpointing"),
        default_value("off", "nothing is computed twice; the same numbers either way"),
    ),
}

REFUSALS: Refusals = {}
