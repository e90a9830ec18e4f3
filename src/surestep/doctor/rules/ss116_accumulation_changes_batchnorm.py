"""BatchNorm normalises the micro-batches of an accumulated batch, and not the batch.

Summing the gradients of N micro-batches gives the step of one batch of N times the size, but not
with BatchNorm: each micro-batch is normalised by its own mean and variance, and the running
statistics move N times for each step. Of few samples, these statistics are noise. Nothing fails:
the same effective batch size trains another model.

Ignore it if the micro-batches are large enough for their statistics, such as 32 samples or more.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(24):
        loss = nn.functional.mse_loss(model(torch.randn(4, 4)), torch.randn(4, 1)) / 4
        loss.backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

Right:

    import torch

    import surestep

    x, y = torch.randn(64, 4), torch.arange(64) % 3
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=16)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from surestep.doctor.limits import ENOUGH_TO_NORMALIZE
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "info"
REVIEWED = True
FIX = "Use GroupNorm or LayerNorm, or a batch without accumulation; or freeze the statistics."


class AccumulationChangesBatchnormWatcher(WindowWatcher):
    """Find BatchNorm layers in train mode in steps of several backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = ""
        self._samples = 0  # of the last forward pass of a BatchNorm layer that is trained
        self._seen_at = -1  # the number of backward passes before it

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        import torch

        from surestep.doctor import private

        is_norm = isinstance(module, private.BatchNorm) and module.training and bool(inputs)
        if is_norm and torch.is_grad_enabled() and not run.in_backward:
            self._layer, self._seen_at = type(module).__name__, run.backwards
            self._samples = len(inputs[0])

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        backward = window.find_repeated_backward()
        if backward is None or self._seen_at != run.backwards - 1:
            return
        if self._samples < ENOUGH_TO_NORMALIZE:
            tally.add(backward.location, run.step, len(window.list_kind("backward")))

    def describe(self, tally: Tally) -> str:
        return (
            f"{self._layer} normalised {self._samples} samples at a time, and a step used "
            f"{tally.most} such micro-batches."
        )
