"""What a change means for a run that resumes: an effect and its reason.

The declaration of an option in `config/` has its effect. This table adds what is compared and is
not an option. `epochs` and `max_steps` depend on what they do to the schedule (`extend.py`).
"""

from collections.abc import Mapping

from surestep.config.config import option_info
from surestep.config.option import (
    BATCHES,
    UNKNOWN,
    ResumeEffect,
    blocked,
    incompatible,
    not_bitwise,
    safe,
)

NOT_OPTIONS: Mapping[str, ResumeEffect] = {
    "data.sampler": BATCHES,
    "batch_transform": BATCHES,
    "parallel.ranks": not_bitwise("sums and dropout are computed over other shards of the batch"),
    "parallel.rank": not_bitwise("sums and dropout are computed over other shards of the batch"),
    "parallel.backend": not_bitwise("another backend may sum in a different order"),
    "task.": blocked("the recipe would be called with another value"),
    "recipe": blocked("the run would resume with different code"),
    "recipe.path": safe("the same file in another folder"),
    "code": not_bitwise("it may compute differently than so far"),
    "data": blocked("it would train on other samples"),
    "loss": blocked("another function would be minimized"),
    "model": incompatible("a checkpoint of one does not fit the other"),
    "modules": blocked("another function would be trained than so far"),
    "settings": not_bitwise("how your module uses it is not known"),
    "torch": not_bitwise("another build of torch may round differently"),
    "surestep": not_bitwise("another version may compute differently"),
    "threads": not_bitwise("another number of threads sums in a different order"),
}
EVALUATIONS_COUNT = not_bitwise(
    "early stopping or the learning rate depends on the number of evaluations"
)
WORKERS_SPLIT = blocked("each worker reads a share of the stream, so the batches would differ")


def resume_effect(name: str) -> ResumeEffect:
    """Return the effect of a change of `name` when a run resumes.

    Args:
        name: an option by its full name, one of several optimizers' options
            ("optimizers.critic.optim.lr"), or another part of a run ("data", "task.hidden").
    """
    if name.startswith("optimizers."):
        name = name.split(".", 2)[2]
    declared = option_info(name)
    if declared is not None and declared.resume is not None:
        return declared.resume
    return NOT_OPTIONS.get(name) or NOT_OPTIONS.get(name.partition(".")[0] + ".") or UNKNOWN
