"""Calls of the first batch that show whether outputs or the loss depend on an attribute."""

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from surestep.engine.batch import MicroBatch, flatten_tensors
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.losses.multi import code_of_losses
from surestep.engine.metrics.base import pop_logged
from surestep.engine.model.attribute_writes import Call
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.modes import TrainModes, preserve_modes
from surestep.engine.own_generators import own_generators
from surestep.engine.rng import ModelRNG, preserve_torch_rng
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
    def transformed(self, transform: BatchTransform, micro: MicroBatch) -> MicroBatch: ...


def make_calls(checks: _Checks, micro: MicroBatch) -> list[Call]:
    """Return what calls the transform, and the model with the loss in train and in eval mode.

    Each call has the same random numbers, and restores the model; it returns all tensors. Empty on
    several ranks, which would have to call the model as often.
    """
    if not checks.is_alone:
        return []
    transform = checks.loader.transform
    modes = (True,) if checks.loader.loss.is_in_training_only else (True, False)
    calls = [Call(partial(_call, checks, micro, training=mode)) for mode in modes]
    if transform is not None:
        calls.append(Call(partial(_transform, checks, transform, micro), "batch_transform"))
    return calls


@torch.no_grad()
def _call(checks: _Checks, micro: MicroBatch, *, training: bool) -> list[Tensor]:
    model, loader, loss = checks.model, checks.loader, checks.loader.loss
    randomness = ModelRNG(loader.seed, loader.device)
    randomness.generators += own_generators(model, code_of_losses(loss)).found
    with (
        preserve_torch_rng(loader.device),
        preserve_buffers(model, loss.module),
        checks.writes.compare(),
        preserve_modes(model.modules()),
    ):
        if training:
            TrainModes(model, tuple(checks.task.keep_eval))
        else:
            model.eval()
        randomness.seed_for("trial", 0)
        if loss.is_in_training_only:
            returned = checks.forward(micro)
        else:
            outputs, tried = checks.forward_and_loss(micro)
            returned = outputs, [value for _, value in tried]
        pop_logged()
        return [tensor.clone() for tensor in flatten_tensors(returned)]


def _transform(checks: _Checks, transform: BatchTransform, micro: MicroBatch) -> list[Tensor]:
    changed = checks.transformed(transform, micro)
    return [
        t.clone() for t in flatten_tensors((changed.args, dict(changed.kwargs), changed.targets))
    ]
