"""What the ranks add up besides gradients, carried by the gradients' own messages.

A message of its own is a meeting of all ranks: on a small model two of them took as long as the
step. So the model is given one parameter more, beside it, which no optimizer knows. Its gradient is
what a rank has to say, and DDP adds it up with the others, in a bucket that is sent anyhow.

The items travel as whole numbers of 12 bits: exact in fp32 for up to 4,096 ranks, whatever DDP
divides and multiplies by. There are so many of them that items of any size keep their digits: they
may be the sum of class weights, each a millionth. Other numbers travel in the parameter's own type.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

_BITS, _LANES = 12, 9
_DIGIT = (1 << _BITS) - 1
_UNIT = 2.0**-68  # 3e-21 of an item
_MOST = _UNIT * 2 ** (_BITS * _LANES)  # 1.1e12


class PiggybackModule(nn.Module):
    """A model beside the parameter that carries.

    Args:
        model: whose outputs are returned as they are.
        numbers: of the host, that travel in each step beside the items.
    """

    def __init__(self, model: nn.Module, numbers: int) -> None:
        super().__init__()
        self.model = model
        first = next(model.parameters())
        real = first.dtype.to_real() if first.is_complex() else first.dtype
        dtype = torch.promote_types(real, torch.float32)  # among fp32 in their bucket
        self.cargo = nn.Parameter(torch.zeros(1 + _LANES + numbers, dtype=dtype).to(first.device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model does."""
        return self.model(*args, **kwargs)


class PiggybackScalars:
    """What one rank sends with the gradients of a step, and what of all ranks arrives.

    Args:
        parameter: of the Carrier.
        ranks: how many add up; DDP divides by them.
    """

    def __init__(self, parameter: nn.Parameter, ranks: int) -> None:
        self.parameter = parameter
        self.ranks = ranks
        self._factor = parameter.new_tensor(ranks)
        self._values, self._zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self._numbers: tuple[float, ...] = ()  # in `values`; most steps have the same
        self._waits = self._is_sent = False

    def send(self, items: float, *numbers: float) -> None:
        """Send the items of this rank, and other numbers of the host, with the next backward."""
        if (items, *numbers) != self._numbers:
            self._numbers = (items, *numbers)
            values = [each * self.ranks for each in (*_digits(items), *numbers)]
            self._values[1:] = self.parameter.new_tensor(values)  # which DDP divides by the ranks
        self._waits = self._is_sent = True

    def clear(self) -> None:
        """Forget what was to be sent by a step that failed on its way."""
        self._waits = self._is_sent = False

    def root(self, loss_sum: Tensor) -> tuple[Tensor, Tensor]:
        """Return what to go backward from besides the loss, and from which gradient."""
        values = self._values if self._waits else self._zeros
        self._waits = False
        values[0] = loss_sum.detach()
        return self.parameter, values

    def loss_sum(self) -> Tensor:
        """Return the loss of all ranks and micro-batches, ()."""
        assert self.parameter.grad is not None
        return self.parameter.grad[0] * self._factor

    def receive(self) -> list[float] | None:
        """Return the sums of what was sent; None where nothing was. Reads the device."""
        if not self._is_sent:
            return None
        self._is_sent = False
        assert self.parameter.grad is not None
        sums = self.parameter.grad.tolist()
        return [_number(tuple(sums[1 : 1 + _LANES])), *sums[1 + _LANES :]]


def _digits(number: float) -> list[float]:
    """Return the digits of a number, the lowest first; NaN where it has none."""
    if not 0 <= number < _MOST:
        return [math.nan] * _LANES
    whole = round(number / _UNIT)
    return [float(whole >> (_BITS * lane) & _DIGIT) for lane in range(_LANES)]


@lru_cache(maxsize=8)  # most steps have the same items
def _number(lanes: Sequence[float]) -> float:
    """Return the number of which these are the digits, each a sum over ranks."""
    if not all(map(math.isfinite, lanes)):
        return math.nan
    return sum(round(lane) << (_BITS * at) for at, lane in enumerate(lanes)) * _UNIT
