"""Whether a model takes the rows of a sample as samples."""

from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.batch import MicroBatch, flatten_tensors, map_tensors
from surestep.engine.checks.measured_batch import UnmeasurableError, measuring

_SAME = 1e-4  # relative: kernels sum in another order for another number of rows


def takes_rows(model: nn.Module, micro_batch: MicroBatch, outputs: Any) -> bool:
    """Return whether the model returns the same for a row alone as within its sample.

    A model of sequences fails for a row, or returns something else.

    Args:
        model: in eval mode.
        micro_batch: the samples.
        outputs: what the model returned for them.
    """

    def take_row(tensor: Tensor) -> Tensor:
        return tensor[0][-1:]

    given = (micro_batch.args, dict(micro_batch.kwargs), outputs)
    try:
        with measuring():
            args, kwargs, found = map_tensors(given, take_row)
            alone = model(*args, **kwargs)
            pairs = zip(flatten_tensors(found), flatten_tensors(alone), strict=True)
            return all(
                one.shape == other.shape and torch.allclose(one, other, rtol=_SAME, atol=_SAME)
                for one, other in pairs
            )
    except UnmeasurableError:
        return False
