"""How earlier versions counted samples as items: a run that resumes must divide by the same number.

They took the rows of the first target for samples if no target had a row for each sample.
"""

from typing import Any

from surestep.engine.batch import batch_size_of, flatten_tensors
from surestep.engine.data.batch_loader import make_loader
from surestep.engine.losses.multi import get_named, named_losses
from surestep.trainer.planning import PreparedTask

ITEMS = 2  # the version of how items are counted


def count_first_items(planned: PreparedTask) -> tuple[float, float] | None:
    """Return the items of the first micro-batch as earlier versions counted them, and now.

    None if the loss has other items than samples.

    Raises:
        DataError, TaskError: there is no first batch, or its samples are not known.
    """
    task, loss, plan = planned.task, planned.loss, planned.plan
    losses = named_losses(loss)
    if not any(one.counts_samples for _, one in losses):
        return None
    loader = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
    try:
        raw, micro = loader.first()
    finally:
        loader.close()
    samples = None if loader.is_ready else micro.samples
    former = 0.0
    for name, one in losses:
        targets = get_named(micro.targets, name, "targets") if name else micro.targets
        former += _count(raw, targets, samples) if one.counts_samples else one.items(raw, targets)
    return former, micro.items


def _count(raw: Any, targets: Any, samples: int | None) -> int:
    given = _shapes(raw)
    if samples is not None and targets is None:
        rows = {shape[0] for shape in given}
        are_left_out = len(rows) == 1 and max(rows) < samples
        is_in_time = all(samples in shape[:2] for shape in given)
        return rows.pop() if are_left_out and not is_in_time else samples
    found = raw if targets is None else targets
    shapes = _shapes(found)
    has_rows = any(shape[0] == samples for shape in shapes)
    is_in_time = bool(shapes) and any(shape[0] != samples for shape in given)
    is_in_time = is_in_time and all(samples in shape[:2] for shape in (*shapes, *given))
    if samples is not None and (has_rows or is_in_time):
        return samples
    return batch_size_of(found)


def _shapes(value: Any) -> list[Any]:
    return [tensor.shape for tensor in flatten_tensors(value) if tensor.dim()]
