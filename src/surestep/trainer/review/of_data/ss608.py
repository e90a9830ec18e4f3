"""SS608: a last batch of one or two samples that BatchNorm layers normalize."""

from collections.abc import Iterator

from surestep.doctor.limits import SMALL_BATCH
from surestep.doctor.problem import Problem
from surestep.doctor.wording import list_names
from surestep.engine.state.average import BATCH_NORM
from surestep.trainer.review.data_case import DataCase


def find(data: DataCase) -> Iterator[Problem]:
    """Find BatchNorm layers that train on a last micro-batch of one or two samples."""
    plan, loader, model = data.plan, data.loop.loader, data.loop.state.model
    layout = loader.layout
    if loader.is_ready or layout.samples is None or layout.ranks > 1 or layout.drop_last:
        return
    if layout.limit is not None or layout.samples <= layout.batch_size:
        return
    rest = layout.samples % layout.batch_size % layout.micro_batch_size
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, BATCH_NORM) and module.training and module not in data.task.keep_eval
    ]
    if 0 < rest <= min(SMALL_BATCH, layout.micro_batch_size - 1) and norms and plan.steps_per_epoch:
        yield Problem(
            f"The last batch of an epoch has {layout.samples % layout.batch_size} of "
            f"{layout.samples} samples, with batch_size={layout.batch_size}, so the BatchNorm "
            f"layers {list_names(norms)} train on {rest} of them.",
            {"samples": layout.samples, "rest": rest, "layers": norms},
        )
