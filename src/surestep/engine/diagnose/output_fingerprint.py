"""What the modules of a model returned, as a fingerprint of the numbers that are finite.

Where a loss and all gradients are NaN, these alone tell one step from another.
"""

from hashlib import sha256

import torch
from torch import Tensor

from surestep.engine.batch import flatten_tensors
from surestep.engine.diagnose.cause import is_floating

_AS_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Outputs:
    """Takes in what modules return, one after another; reads the device each time."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._finite = 0

    def add(self, module: str | None, made: object) -> None:
        """Take in what a module returned: tensors of torch's own class, not what ranks share."""
        for each in flatten_tensors(made):
            if is_floating(each) and type(each) is Tensor and each.layout == torch.strided:
                self._add(module, each.detach())

    def _add(self, module: str | None, tensor: Tensor) -> None:
        """Add up the bits as whole numbers: the same in any order, and so in any memory format."""
        numbers = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        finite = torch.isfinite(numbers)
        kept = torch.where(finite, numbers, torch.zeros_like(numbers))
        bits = kept.view(_AS_WHOLE[kept.element_size()]).sum(dtype=torch.int64)
        count = int(finite.sum())
        self._finite += count
        said = (module, str(tensor.dtype), tuple(tensor.shape), count, int(bits))
        self._hash.update(repr(said).encode())

    @property
    def fingerprint(self) -> str | None:
        """The same where all was the same bit for bit; None where nothing was finite."""
        return self._hash.hexdigest() if self._finite else None
