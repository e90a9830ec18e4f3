"""What is kept in memory between forward and backward."""

from surestep.engine.plan import Refusal
from surestep.engine.table.rows import Refusals, Rows, default, said

ROWS: Rows = {
    "activation_checkpointing": (
        said("activation_checkpointing"),
        default("off", "nothing is computed twice; the same numbers either way"),
    ),
}

REFUSALS: Refusals = {
    "activation_checkpointing": (
        Refusal(
            lambda k: (
                k.said.get("activation_checkpointing") == "on" and not k.given.own_checkpointing
            ),
            lambda _: (
                "activation_checkpointing='on' needs a model that brings its own "
                "(gradient_checkpointing_enable, as Hugging Face models do), and this one does "
                "not. Leave it out, or use a smaller micro_batch_size."
            ),
        ),
    ),
}
