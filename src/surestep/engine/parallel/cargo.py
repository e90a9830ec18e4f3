"""What the ranks add up besides gradients, carried by the gradients' own messages.

A message of its own is a meeting of all ranks: on a small model two of them took as long as the
step. So the model is given one parameter more, beside it, which no optimizer knows. Its gradient is
what a rank has to say, and DDP adds it up with the others, in a bucket that is sent anyhow.

The host's numbers travel as whole numbers of 12 bits: exact in fp32 for up to 4,096 ranks, whatever
DDP divides and multiplies by. There are so many of them that a number of any size keeps its digits:
items may be the sum of class weights, each a millionth.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_BITS, _LANES = 12, 9
_DIGIT = (1 << _BITS) - 1
_UNIT = 2.0**-68  # 3e-21, of an item or of a second
_MOST = _UNIT * 2 ** (_BITS * _LANES)  # 1.1e12
_NOTHING = [0.0] * _LANES


class Carrier(nn.Module):
    """A model beside the parameter that carries.

    Args:
        model: whose outputs are returned as they are.
        numbers: of the host, that travel in each step.
    """

    def __init__(self, model: nn.Module, numbers: int) -> None:
        super().__init__()
        self.model = model
        first = next(model.parameters())
        real = first.dtype.to_real() if first.is_complex() else first.dtype
        dtype = torch.promote_types(real, torch.float32)  # among fp32 in their bucket
        self.cargo = nn.Parameter(torch.zeros(1 + numbers * _LANES, dtype=dtype).to(first.device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model does."""
        return self.model(*args, **kwargs)


class Cargo:
    """What one rank sends with the gradients of a step, and what of all ranks arrives.

    Args:
        parameter: of the Carrier.
        ranks: how many add up; DDP divides by them.
    """

    def __init__(self, parameter: nn.Parameter, ranks: int) -> None:
        self.parameter = parameter
        self._seed = torch.full_like(parameter, ranks)
        self._aboard: list[float] | None = None
        self._travels = False

    def board(self, numbers: Sequence[float]) -> None:
        """Send numbers of the host, none negative, with the next backward."""
        self._aboard, self._travels = [lane for each in numbers for lane in _lanes(each)], True

    def unload(self) -> None:
        """Forget what was to be sent by a step that failed on its way."""
        self._aboard, self._travels = None, False

    def root(self, loss_sum: Tensor) -> tuple[Tensor, Tensor]:
        """Return what to go backward from besides the loss, and from which gradient."""
        if self._aboard is None:
            values = torch.zeros_like(self.parameter)
        else:
            values = self.parameter.new_tensor([0.0, *self._aboard])
            self._aboard = None
        values[0] = loss_sum.detach()
        return self.parameter * values, self._seed

    def loss_sum(self) -> Tensor:
        """Return the loss of all ranks and micro-batches, ()."""
        assert self.parameter.grad is not None
        return self.parameter.grad[0].clone()  # a view of the bucket, which the next step fills

    def landed(self) -> list[float] | None:
        """Return the sums of the numbers that were sent; None where none were. Reads the device."""
        if not self._travels:
            return None
        self._travels = False
        assert self.parameter.grad is not None
        lanes = self.parameter.grad.tolist()[1:]
        return [_number(lanes[at : at + _LANES]) for at in range(0, len(lanes), _LANES)]


def _lanes(number: float) -> list[float]:
    """Return a number as digits, the lowest first; NaN where it is none that can be sent."""
    if not number:
        return _NOTHING
    if not 0 < number < _MOST:
        return [math.nan] * _LANES
    whole = round(number / _UNIT)
    return [float(whole >> (_BITS * lane) & _DIGIT) for lane in range(_LANES)]


def _number(lanes: Sequence[float]) -> float:
    """Return the number of which these are the digits, each a sum over ranks."""
    if not any(lanes):
        return 0.0
    if not all(map(math.isfinite, lanes)):
        return math.nan
    return sum(round(lane) << (_BITS * at) for at, lane in enumerate(lanes)) * _UNIT
