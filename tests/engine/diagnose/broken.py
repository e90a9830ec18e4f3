"""Tasks with a known fault in one sample, in one layer, or in the learning rate."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.batch import Batch
from surestep.engine.diagnose.diagnose import Diagnosis, diagnose
from surestep.engine.state.state import Progress
from surestep.trainer.session import Session
from tests import tiny

SAMPLES, BAD = 24, 13  # the number of samples, and the index of the faulty one
GRADIENT = 1e-3


class Between(nn.Module):
    """A layer that applies a function to its input."""

    def __init__(self, does: Any) -> None:
        super().__init__()
        self.does = does

    def forward(self, value: Tensor) -> Tensor:
        return self.does(value)


def model(does: Any = None, *norm: nn.Module) -> nn.Sequential:
    """Return a small network with a custom first layer, called "0"."""
    torch.manual_seed(3)
    layers = [nn.Linear(4, 6), *norm, nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(Between(does or (lambda value: value)), *layers)


def data(bad: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return samples of which one is `bad` in each feature."""
    x, y = tiny.data(SAMPLES)
    x = x.abs() + 0.1
    x[BAD] = bad
    return x, y


def half_logarithm(value: Tensor) -> Tensor:
    """Mask log(0) with `torch.where`, a common mistake: its gradient is still NaN."""
    return torch.where(value > 0, torch.log(value), torch.zeros_like(value))


def learned(does: Any) -> nn.Sequential:
    """Return a network whose gradient passes through `does` to a weight before it."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, value: Tensor) -> Tensor:
            return does(value * self.scale)

    torch.manual_seed(3)
    return nn.Sequential(Scaled(), nn.Linear(4, 6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 3))


def place_of(session: Session, index: int) -> tuple[Batch, Progress]:
    """Return the first batch that contains a sample, and the progress at its start."""
    loader = session.loop.loader
    order = loader.epoch_order(0)
    wanted = index if order is None else order.tolist().index(index)
    for batch in loader.batches(0):
        if wanted < batch.end:
            return batch, Progress(epoch=0, position=batch.position)
    raise AssertionError


def diagnosed(session: Session, index: int = BAD) -> Diagnosis:
    """Diagnose the batch that contains a sample, with the current weights."""
    batch, place = place_of(session, index)
    session.state.progress = place
    return diagnose(session.loop.context, batch, index=session.loop.loader.epoch_order(0))


def nans(tensor: Tensor) -> bool:
    return math.isnan(float(tensor.sum()))
