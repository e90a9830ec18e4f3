"""An average of the weights over the run: EMA or SWA.

When it takes the weights in, and how much of them, is a function of the step; only the
averaged tensors are kept. The numbers are those of torch.optim.swa_utils.AveragedModel.
Source: https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine import private
from surestep.engine.buffers import NORM_STATISTICS, Slot, every_buffer
from surestep.engine.distributed.shards import to_local
from surestep.engine.losses.base import HALF
from surestep.engine.modes import TrainModes
from surestep.engine.plan.specs import AveragingSpec
from surestep.engine.schedule.registry import Factor
from surestep.engine.step_outcome import StepOutcome

BATCH_NORM = nn.modules.batchnorm._BatchNorm
_QUANTIZATION = ("torch.ao.quantization.", "torchao.quantization.")
NAME = "average of the weights"  # of its entry in `callback_states`


class AveragedWeights:
    """The averaged weights of a model, and its buffers where the average has its own.

    An update takes the weights in just before the next forward or use of the average, so that a
    callback or a training loop may change them after a step, for example limit them.

    Attributes:
        stored: the averaged tensors by name, without an update that is due; see `tensors`.
        computed_at: the number of updates after which BatchNorm's statistics were last computed.
        missed: updates that were due in skipped steps, or before the average was switched on,
            without the one that it starts with.
    """

    def __init__(
        self,
        averaging: AveragingSpec,
        model: nn.Module,
        trained: Iterable[Tensor],
        modes: TrainModes | None = None,
    ) -> None:
        self.averaging = averaging
        self._modes = modes or TrainModes(model)
        wanted = {id(parameter) for parameter in trained}
        named = model.named_parameters()
        self._weights = {name: tensor for name, tensor in named if id(tensor) in wanted}
        self._buffers = self._first_buffers = _buffers(model, averaging.buffers)
        self.stored: dict[str, Tensor] = {}
        self._due: tuple[float, Tensor | None] | None = None  # share and flag of an update
        for name, weight in (*self._weights.items(), *self._own_buffers(fitting=False).items()):
            is_averaged = name in self._weights or averaging.buffers == "average"
            dtype = torch.float32 if is_averaged and weight.dtype in HALF else weight.dtype
            self.stored[name] = weight.detach().to(dtype, copy=True)
        self.computed_at = self.missed = 0

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Return what the model would hold if it were the average, by name.

        Half-precision weights are averaged in fp32, where a share of 0.001 is not lost to rounding.
        """
        self.take_in()
        return self.stored

    def n_updates(self, step: int, missed: int | None = None) -> int:
        """Return how many times the average has taken the weights in; 0: there is none yet."""
        missed = self.missed if missed is None else missed
        return max(0, self.averaging.count_updates(step) - missed)

    def _is_due(self, step: int) -> bool:
        return self.averaging.count_updates(step) > self.averaging.count_updates(step - 1)

    def update_weight(self, update: int) -> float:
        """Return the share of the new weights in an update, counted from 1.

        EMA with warm-up has the decay min(decay, (1 + n) / (10 + n)) after n updates, so that a
        young average is not mostly the first weights.
        """
        before = update - 1
        if before == 0:
            return 1.0
        if self.averaging.kind == "swa":
            return 1 / update
        decay = self.averaging.decay
        assert decay is not None
        return 1 - (min(decay, (1 + before) / (10 + before)) if self.averaging.warmup else decay)

    def update(self, step: int, outcome: StepOutcome) -> None:
        """Take the weights in after this step if it is time.

        If the step was skipped, only at the end of an epoch. Where only the device knows whether it
        was, it makes the share 0: nothing is read.
        """
        if not self._is_due(step):
            return
        if not (outcome.took_step or self.averaging.by_epochs):
            self.missed += 1
        elif update := self.n_updates(step):
            self.take_in()
            self._due = self.update_weight(update), outcome.nonfinite_flag

    def undo_skip(self, step: int) -> None:
        """Count a skipped step as not done yet."""
        if self._is_due(step) and not self.averaging.by_epochs:
            self.missed -= 1

    @torch.no_grad()
    def take_in(self) -> None:
        """Take in the weights of the update that is due, if one is."""
        if self._due is None:
            return
        (share, flag), self._due = self._due, None
        with self._modes.for_weights():
            now: dict[str, Tensor] = dict(self._weights)
            if self.averaging.buffers == "average":
                now |= self._leave_changed()
            averaged = [to_local(self.stored[name]) for name in now]
            pairs = zip(map(to_local, now.values()), averaged, strict=True)
            values = [pair.to(mine.dtype) for pair, mine in pairs]
            if flag is None:
                private.foreach_lerp_(averaged, values, share)
                return
            good, kinds = torch.eq(flag, 0), {tensor.dtype for tensor in averaged}
            shares = {kind: good.to(kind).mul_(share) for kind in kinds}
            own = [shares[tensor.dtype] for tensor in averaged]
            private.foreach_lerp_(averaged, values, own)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Use the averaged tensors as the model's; restore its own afterwards.

        They are copied in place: a model may have views of them, such as a transposed weight, or a
        buffer with several owners. So this takes the memory of the weights once more.
        """
        averaged = self.tensors
        with self._modes.for_weights():
            weights = {
                name: to_local(weight.detach()).clone() for name, weight in self._weights.items()
            }
            buffers = self._own_buffers()
            values = {name: buffer.clone() for name, buffer in buffers.items()}
        try:
            with self._modes.for_weights():
                self._put_weights(averaged)
                self._put_buffers(buffers, averaged)
            yield
        finally:
            with self._modes.for_weights():
                self._put_weights(weights)
                for name, buffer in buffers.items():
                    self._set_buffer(name, buffer)
                self._put_buffers(buffers, values)

    @torch.no_grad()
    def _put_weights(self, values: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            to_local(weight).copy_(to_local(values[name]))

    @torch.no_grad()
    def _put_buffers(self, buffers: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
        for name, buffer in buffers.items():
            own = to_local(buffer)
            if private.has_overlap(own) == 0 and not own.is_inference():
                own.copy_(to_local(values[name]))
            else:  # such as an expanded one
                self._set_buffer(name, values[name].to(buffer.dtype))

    @torch.no_grad()
    def keep_buffers(self) -> None:
        """Take the buffers of the model as those of the average."""
        for name, buffer in self._own_buffers().items():
            self.stored[name].copy_(buffer)

    @torch.no_grad()
    def begin(self, step: int) -> None:
        """Begin with the weights and buffers that the model has now."""
        self._due = None
        for name, weight in (*self._weights.items(), *self._leave_changed().items()):
            to_local(self.stored[name]).copy_(to_local(weight))
        self.missed += self.n_updates(step) - 1
        self.computed_at = self.n_updates(step)

    def state_dict(self) -> dict[str, Any]:
        """Return what does not follow from the step."""
        left = sorted(self._first_buffers.keys() - self._buffers.keys())
        return {"missed": self.missed, "left_buffers": left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what does not follow from the step."""
        self.missed, self._due = state["missed"], None
        left = state.get("left_buffers", ())  # older checkpoints have none
        self._buffers = {n: slot for n, slot in self._first_buffers.items() if n not in left}
        own = self._own_buffers(fitting=False)
        self.stored = {
            name: self.stored[name] if name in self.stored else own[name].detach().clone()
            for name in (*self._weights, *self._buffers)
        }

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Take over averaged tensors that were saved after this step.

        Raises:
            CheckpointError: names or shapes differ; nothing is loaded then.
        """
        shapes = {name: self.stored[name].shape for name in self._weights}
        given = {name: tensors[name].shape for name in shapes.keys() & tensors.keys()}
        if tensors.keys() != shapes.keys() | self._buffers.keys() or given != shapes:
            raise CheckpointError(
                "The average in the checkpoint is of a different model, or average.buffers was "
                "different. Go back to the config it was trained with."
            )
        self._due = None
        for name, values in tensors.items():
            mine = self.stored[name]
            if mine.shape == values.shape:
                mine.copy_(values)
            else:  # a buffer that has changed since
                self.stored[name] = values.to(mine.device, mine.dtype, copy=True)
        self.computed_at = self.n_updates(step)

    def _leave_changed(self) -> dict[str, Tensor]:
        """Use the model's buffer from now on where one has a different shape or dtype.

        An average is not defined for a table that grows, or for the ranges of more channels.

        Returns:
            The model's other buffers of which the average has its own.
        """
        own = self._own_buffers(fitting=False)
        fitting = {name: tensor for name, tensor in own.items() if self._fits(name, tensor)}
        for name in own.keys() - fitting.keys():
            del self.stored[name]
        self._buffers = {name: slot for name, slot in self._buffers.items() if name in self.stored}
        return fitting

    def _fits(self, name: str, buffer: Tensor) -> bool:
        mine = self.stored[name]
        is_wider = buffer.dtype in HALF and mine.dtype is torch.float32
        return mine.shape == buffer.shape and (is_wider or mine.dtype == buffer.dtype)

    def _own_buffers(self, *, fitting: bool = True) -> dict[str, Tensor]:
        """Return the model's buffers of which the average has its own, as they are now."""
        found = {name: owner._buffers[key] for name, owner, key in self._buffers.values()}
        return {
            name: tensor
            for name, tensor in found.items()
            if tensor is not None and (not fitting or self._fits(name, tensor))
        }

    def _set_buffer(self, name: str, tensor: Tensor) -> None:
        _, owner, key = self._buffers[name]
        owner._buffers[key] = tensor


def _buffers(model: nn.Module, kind: str) -> dict[str, Slot]:
    """Return the buffers that the average has itself.

    Averaged ones are finite numbers with a fraction. Whole numbers are counts, a mask of -inf has
    no average, a sparse one is a table, of 8-bit floating point torch has no arithmetic, and a
    scale of quantization belongs to its zero point: those of the model hold.
    """
    slots: dict[str, Slot] = {}
    for slot in every_buffer(model):
        name, owner, key = slot
        buffer = owner._buffers[key]
        if buffer is None:
            continue
        if kind == "recompute":
            has_own = isinstance(owner, BATCH_NORM) and key in NORM_STATISTICS
        else:
            is_number = buffer.is_floating_point() or buffer.is_complex()
            is_plain = is_number and buffer.dtype.itemsize > 1 and buffer.layout is torch.strided
            has_own = kind == "average" and is_plain and bool(torch.isfinite(buffer).all())
        if has_own and not _is_quantizer(owner):
            slots[name] = slot
    return slots


def _is_quantizer(owner: nn.Module) -> bool:
    """Return whether a module observes ranges or rounds by them; does not import torch.ao."""
    return any(kind.__module__.startswith(_QUANTIZATION) for kind in type(owner).__mro__)


def with_swa_lr(rate: Factor, averaging: AveragingSpec, peak: float) -> Factor:
    """Return the rate that goes over to SWA's own, by a cosine, as torch's SWALR does."""
    if averaging.lr is None:
        return rate
    start, length, ratio = averaging.start, averaging.anneal, averaging.lr / peak
    base = rate(start)

    def at(steps_taken: int) -> float:
        if steps_taken < start:
            return rate(steps_taken)
        share = min(1.0, (steps_taken - start) / length) if length else 1.0
        alpha = (1 - math.cos(math.pi * share)) / 2
        return ratio * alpha + base * (1 - alpha)

    return at
