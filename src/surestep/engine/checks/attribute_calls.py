"""Calls of the first batch that show whether outputs or the loss depend on an attribute."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.losses.multi import code_of_losses
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.modes import TrainModes, preserve_modes
from surestep.engine.own_generators import own_generators
from surestep.engine.rng import ModelRNG
from surestep.engine.task.task import Task


class _Checks(Protocol):
    @property
    def model(self) -> nn.Module: ...
    @property
    def loader(self) -> BatchLoader: ...
    @property
    def task(self) -> Task: ...
    @property
    def writes(self) -> ForwardWrites: ...
    @property
    def is_alone(self) -> bool: ...
    def forward(self, micro: MicroBatch) -> Any: ...
    def forward_and_loss(self, micro: MicroBatch) -> tuple[Any, Any]: ...


def make_calls(checks: _Checks, micro: MicroBatch) -> list[Callable[[], list[Tensor]]]:
    """Return what calls the model and the loss in train mode, and in eval mode if it has one.

    Each call has the same random numbers, and restores the model; it returns all tensors. Empty on
    several ranks, which would have to call the model as often.
    """
    if not checks.is_alone:
        return []
    modes = (True,) if checks.loader.loss.is_in_training_only else (True, False)
    return [partial(_call, checks, micro, training=training) for training in modes]


def _call(checks: _Checks, micro: MicroBatch, *, training: bool) -> list[Tensor]:
    model, loader, loss = checks.model, checks.loader, checks.loader.loss
    randomness = ModelRNG(loader.seed, loader.device)
    randomness.generators += own_generators(model, code_of_losses(loss)).found
    with (
        preserve_buffers(model, loss.module),
        checks.writes.compare(),
        preserve_modes(model.modules()),
    ):
        if training:
            TrainModes(model, tuple(checks.task.keep_eval))
        randomness.seed_for("trial", 0)
        if loss.is_in_training_only:
            returned = checks.forward(micro)
        else:
            outputs, tried = checks.forward_and_loss(micro)
            returned = outputs, [value for _, value in tried]
        return [tensor.clone() for tensor in flatten_tensors(returned)]
