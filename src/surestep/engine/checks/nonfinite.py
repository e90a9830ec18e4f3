"""Values of the first batch that are not finite."""

from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.losses.multi import with_items


def replace_nonfinite(
    loader: BatchLoader, raw: Any, micro: MicroBatch, *, skips: bool
) -> tuple[Any, MicroBatch]:
    """Return the batch to check, with a copy of a finite sample in place of each that is not.

    The number of samples stays, since all ranks call the model equally often.

    Raises:
        DataError: a value is not finite, and the run does not skip such a step.
    """
    is_bad, problem = torch.zeros(micro.samples, dtype=torch.bool), ""
    inputs = (micro.args, dict(micro.kwargs))
    for what, value in (("inputs", inputs), ("targets", micro.targets)):
        for tensor in filter(Tensor.is_floating_point, flatten_tensors(value)):
            bad = ~torch.isfinite(tensor)
            if not bool(bad.any()):
                continue
            problem = problem or (
                f"The {what} of the first batch hold {int(bad.sum())} values that are NaN or "
                f"infinite (shape {tuple(tensor.shape)})"
            )
            if tensor.dim() and len(tensor) == micro.samples:
                is_bad |= bad.reshape(len(bad), -1).any(1).cpu()
    if problem and not skips:
        raise DataError(problem + _nonfinite_hint(loader, micro, is_bad.nonzero().flatten()))
    if not problem or bool(is_bad.all()):
        return raw, micro
    rows = torch.arange(micro.samples).where(~is_bad, (~is_bad).nonzero()[0])

    def replace(tensor: Tensor) -> Tensor:
        per_sample = tensor.dim() > 0 and len(tensor) == micro.samples
        return tensor[rows.to(tensor.device)] if per_sample else tensor

    given = (raw, micro.args, dict(micro.kwargs), micro.targets)
    finite_raw, args, kwargs, targets = map_tensors(given, replace)
    finite = micro._replace(args=args, kwargs=kwargs, targets=targets)
    finite = with_items(finite, loader.loss, finite_raw)
    return (finite_raw, finite) if finite.items else (raw, micro)


def _nonfinite_hint(loader: BatchLoader, micro: MicroBatch, rows: Tensor) -> str:
    """Return the indices of the samples, if they have some, and what to do."""
    skip = "skip such a step with on_nonfinite='skip'"
    if not len(rows) or loader.is_ready or isinstance(loader.source, StreamLoader):
        return f". Correct the data, or {skip}."
    order = loader.epoch_order(0)
    positions = micro.position + rows
    samples = sorted((positions if order is None else order[positions]).tolist())
    listed = f"[{', '.join(map(str, samples[:10]))}{', ...' * (len(samples) > 10)}]"
    return (
        f": training samples {listed}. Correct them, exclude them with exclude_samples={listed}, "
        f"or {skip}."
    )
