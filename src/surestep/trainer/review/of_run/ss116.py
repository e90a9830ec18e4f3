"""SS116: BatchNorm layers in a run that splits its batches."""

from collections.abc import Iterator

from surestep.doctor.limits import ENOUGH_TO_NORMALIZE
from surestep.doctor.problem import Problem
from surestep.doctor.wording import list_names
from surestep.engine.state.average import BATCH_NORM
from surestep.trainer.review.case import Case


def find(case: Case) -> Iterator[Problem]:
    """Find BatchNorm layers in a run that splits its batches."""
    layout, model = case.loop.loader.layout, case.loop.state.model
    size, samples = layout.batch_size, layout.micro_batch_size
    if samples >= min(size, ENOUGH_TO_NORMALIZE):
        return
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, BATCH_NORM) and module not in case.task.keep_eval
    ]
    if layers:
        yield Problem(
            f"The BatchNorm layers {list_names(layers)} normalised micro-batches of {samples} "
            f"samples, and not the batches of {size}.",
            {"layers": layers, "micro_batch_size": samples, "batch_size": size},
        )
