"""One copy of the model in each process; torch averages the gradients: DDP.

A step also needs the items, the loss and the requests of all ranks. To save a message, they are the
gradient of one additional parameter: docs/decisions/0017 has the reasons and the measurements.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from surestep.base.errors import TaskError
from surestep.engine import private
from surestep.engine.batch import Batch
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.losses.base import Loss
from surestep.engine.parallel.base import NO_GRADIENT, NOTHING
from surestep.engine.parallel.distributed import DistributedStrategy
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import WHOLE, State
from surestep.engine.step_outcome import Gradients

_NOT_STATIC = (
    "torch summed no gradients in this step: a parameter that the first step used is not used any "
    "more, and parallel.static_graph=True promises that every step uses the same. Remove it; if "
    "some steps use fewer parameters, set parallel.find_unused_parameters=True."
)
_BITS, _DIGITS = 12, 9
_UNIT = 2.0**-68  # 3e-21 of an item: class weights may be millionths
_MAX_ITEMS = _UNIT * 2 ** (_BITS * _DIGITS)  # 1.1e12


class DDPStrategy(DistributedStrategy):
    """The methods of a step on a copy of the model in each process.

    Args:
        plan, state, world, name: as for Strategy.

    Attributes:
        sends_loss_with_gradients: the loss, the items and the requests of the ranks are in a
            bucket of DDP. A subclass with a communication hook sets it to False: the hook would
            change them.
    """

    sends_loss_with_gradients = True

    takes = ("find_unused_parameters", "static_graph")

    def __init__(self, plan: Plan, state: State, world: Communicator, name: str = WHOLE) -> None:
        super().__init__(plan, state, world, name)
        self._piggyback: PiggybackScalars | None = None
        model = state.model
        # With find_unused_parameters, the additional parameter would count as unused.
        sends_scalars = self.sends_loss_with_gradients and not plan.parallel_find_unused_parameters
        if world.size > 1 and sends_scalars:
            # If a static graph changes, DDP sums nothing; the sum of these numbers shows it.
            self._present = [world.rank + 1.0] if plan.parallel_static_graph else []
            model = PiggybackModule(model, 2 + len(self._present))
            self._piggyback = PiggybackScalars(model.scalars, world.size)
            self.cleared = [*self.parameters, model.scalars]
        self.module = self.wrap_model(model, plan)
        self._learns_graph = plan.parallel_static_graph
        # Reading the items would wait for a GPU; an fp16 scale fits the size of a mean loss; and
        # L-BFGS runs several backward passes a step.
        reads = plan.device.type == "cpu" and plan.guard not in ("grad_scaler", "line_search")
        self._sends_items = reads and self._piggyback is not None

    def wrap_model(self, model: nn.Module, plan: Plan) -> nn.Module:
        """Return the model in a wrapper that averages its gradients over the ranks.

        Args:
            model: the model, on its device; it may have the additional parameter.
            plan: the Plan of the run.
        """
        on_gpu = plan.device.type == "cuda"
        return DistributedDataParallel(
            model,
            device_ids=[plan.device] if on_gpu else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=plan.parallel_find_unused_parameters,
            static_graph=plan.parallel_static_graph,
        )

    def sync_grads(self, *, when: bool) -> AbstractContextManager[Any]:
        """Keep the gradients of all but the last backward on their rank."""
        if self._learns_graph:
            # DDP learns a static graph from its first backward, which must be synced. It is that
            # of the warm-up, whose gradients are not used.
            self._learns_graph = False
            return NOTHING
        module: Any = self.module
        # Accelerate does not wrap the model of one process.
        return NOTHING if when or not hasattr(module, "no_sync") else module.no_sync()

    def count_items(self, batch: Batch, loss: Loss) -> Batch:
        """Return the batch with the items of all ranks, or send those of this rank with gradients.

        Until `finish_backward` has the items, the gradients are then divided by the samples.
        """
        if self._piggyback is None:
            return super().count_items(batch, loss)
        self._piggyback.clear()
        samples = batch.end - batch.position
        divides_later = self._sends_items and loss.divides and not loss.components
        if not (divides_later and samples and batch.micro_batches):
            return super().count_items(batch, loss)
        self.world.n_collectives += 1
        self._piggyback.send(batch.items, *self.world.summarize(), *self._present)
        return batch._replace(items=float(samples))

    def backward(self, loss_sum: Tensor, items: float) -> None:
        """Run backward from ranks / items, since DDP divides by the ranks; send the scalars too."""
        if self._piggyback is None:
            super().backward(loss_sum, items / self.world.size)
            return
        if not loss_sum.requires_grad:
            raise TaskError(NO_GRADIENT)
        value, start = self.world.size / items, self.loss_gradients.get(loss_sum.dtype)
        if start is None or start.value != value:
            start = self.make_loss_gradient(loss_sum, value)
        root, values = self._piggyback.root(loss_sum)
        run = private.run_backward if type(loss_sum) is Tensor else torch.autograd.backward
        run((loss_sum, root), (self.scaler.scale(start.tensor), values))

    def finish_backward(self, gradients: Gradients) -> Gradients:
        """Return the gradients with the loss and the items of all ranks; divide by these items.

        Raises:
            TaskError: nothing was summed, because the graph was not static.
        """
        gradients = super().finish_backward(gradients)
        received = None if self._piggyback is None else self._piggyback.receive()
        if received is None:
            return gradients
        items, requests, seconds, *present = received
        expected = self.world.size * (self.world.size + 1) / 2
        if present and not math.isclose(present[0], expected, rel_tol=1e-3):
            raise TaskError(_NOT_STATIC)
        self.world.agree_by(requests, seconds)
        return self._divide_again(gradients, items)

    def reduce_loss(self, loss_sum: Tensor) -> Tensor:
        """Return the loss of all ranks, as it arrived with the gradients."""
        if self._piggyback is None:
            return super().reduce_loss(loss_sum)
        return self._piggyback.loss_sum().to(loss_sum.dtype)

    def _divide_again(self, gradients: Gradients, items: float) -> Gradients:
        """Divide gradients and logged sums by `items` instead of the samples."""
        logged, ratio = gradients.logged, gradients.items / items if items else 1.0
        if ratio != 1:
            grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            private.foreach_mul_(grads, ratio)
            logged = [
                part if part.items else part._replace(value=part.value * ratio) for part in logged
            ]
        return Gradients(gradients.loss_sum, items, logged)


class PiggybackModule(nn.Module):
    """A model with one additional parameter, whose gradient carries numbers between ranks.

    Args:
        model: the model; its outputs are returned unchanged.
        numbers: how many numbers are sent besides the loss and the items.
    """

    def __init__(self, model: nn.Module, numbers: int) -> None:
        super().__init__()
        self.model = model
        first = next(model.parameters())
        real = first.dtype.to_real() if first.is_complex() else first.dtype
        dtype = torch.promote_types(real, torch.float32)  # in the bucket of fp32 parameters
        values = torch.zeros(1 + _DIGITS + numbers, dtype=dtype)
        self.scalars = nn.Parameter(values.to(first.device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of the model."""
        return self.model(*args, **kwargs)


class PiggybackScalars:
    """The numbers that a rank sends with the gradients of a step, and the sums that it receives.

    Items are sent as digits of 12 bits, which fp32 sums exactly for up to 4,096 ranks, although DDP
    divides by the ranks. Other numbers are sent in the type of the parameter.
    """

    def __init__(self, parameter: nn.Parameter, ranks: int) -> None:
        self.parameter = parameter
        self.ranks = ranks
        self._values, self._zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
        # Views: to index takes longer than to copy.
        self._value_of_loss, self._zero_of_loss = self._values[0], self._zeros[0]
        self._numbers: tuple[float, ...] = ()  # those in `_values`; most steps send the same
        self._is_waiting = self._is_sent = False

    def send(self, items: float, *numbers: float) -> None:
        """Send the items of this rank, and other numbers, with the next backward."""
        if (items, *numbers) != self._numbers:
            self._numbers = (items, *numbers)
            values = [value * self.ranks for value in (*_digits(items), *numbers)]
            self._values[1:] = self.parameter.new_tensor(values)
        self._is_waiting = self._is_sent = True

    def clear(self) -> None:
        """Forget the numbers of a step that failed before its backward."""
        self._is_waiting = self._is_sent = False

    def root(self, loss_sum: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensor to run backward from besides the loss, and its gradient."""
        values, place = self._zeros, self._zero_of_loss
        if self._is_waiting:
            values, place, self._is_waiting = self._values, self._value_of_loss, False
        place.copy_(loss_sum.detach())
        return self.parameter, values

    def loss_sum(self) -> Tensor:
        """Return the loss of all ranks and micro-batches, ()."""
        assert self.parameter.grad is not None
        return self.parameter.grad[0] * self.ranks

    def receive(self) -> list[float] | None:
        """Return the sums of what was sent; None if nothing was. Waits for the device."""
        if not self._is_sent:
            return None
        self._is_sent = False
        assert self.parameter.grad is not None
        sums = self.parameter.grad.tolist()
        return [_number(tuple(sums[1 : 1 + _DIGITS])), *sums[1 + _DIGITS :]]


def _digits(number: float) -> list[float]:
    """Return the digits of a number, the lowest first; NaN if it is out of range."""
    if not 0 <= number < _MAX_ITEMS:
        return [math.nan] * _DIGITS
    units, mask = round(number / _UNIT), (1 << _BITS) - 1
    return [float(units >> (_BITS * place) & mask) for place in range(_DIGITS)]


@lru_cache(maxsize=8)  # most steps have the same items
def _number(digits: Sequence[float]) -> float:
    """Return the number with these digits, each a sum over ranks."""
    if not all(map(math.isfinite, digits)):
        return math.nan
    return sum(round(digit) << (_BITS * place) for place, digit in enumerate(digits)) * _UNIT
