"""Tasks in which chosen steps are not finite: in the loss, the gradients, or both.

The data has a flag for each sample. The flag acts on the device, so a bad batch costs no read. The
model has BatchNorm, which sees a bad batch before the host knows.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from tests.laws.support.plain import order_of
from tests.laws.support.tasks import rows

SAMPLES, BATCH = 96, 8  # twelve steps an epoch


class BadGradient(torch.autograd.Function):
    """Return the input; return an infinite gradient for flagged samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flags: Tensor) -> Tensor:
        ctx.save_for_backward(flags)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (flags,) = ctx.saved_tensors
        return torch.where(flags[:, None] > 0, torch.inf, grad), None


class Net(nn.Module):
    """Two layers with BatchNorm between them; a bad gradient stops at the second."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Linear(10, 8, bias=False)  # BatchNorm removes a bias
        self.norm = nn.BatchNorm1d(8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: Tensor, flags: Tensor) -> Tensor:
        if self.kind == "both":
            x = torch.where(flags[:, None] > 0, torch.nan, x)
        hidden = self.norm(self.first(x)).relu()
        if self.kind == "gradient":
            hidden = BadGradient.apply(hidden, flags)
        return self.second(hidden)


# The parameters whose gradients are not finite, by kind of failure.
BEFORE = ["first.weight", "norm.weight", "norm.bias"]
HURT = {"both": [*BEFORE, "second.weight", "second.bias"], "gradient": BEFORE, "loss": []}


def bad_loss(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    """Return cross-entropy, and infinity without a gradient for flagged samples."""
    y, flags = targets
    return functional.cross_entropy(outputs, y) + torch.where(flags > 0, torch.inf, 0.0).sum()


def bomb(kind: str, bad_steps: Iterable[int], **options: Any) -> surestep.Task:
    """Make a task in which `bad_steps` of the first epoch, counted from 1, are not finite."""
    x, y = rows(SAMPLES)
    flags = torch.zeros(SAMPLES)
    order = order_of(SAMPLES, 0, 0)
    for step in bad_steps:
        flags[order[(step - 1) * BATCH + 2]] = 1.0
    torch.manual_seed(1)
    if kind == "loss":
        loss: Callable = bad_loss
        inputs = lambda batch: ((batch[0], batch[1]), (batch[2], batch[1]))  # noqa: E731
    else:
        loss = nn.CrossEntropyLoss()
        inputs = lambda batch: ((batch[0], batch[1]), batch[2])  # noqa: E731
    return surestep.Task(Net(kind), loss, (x, flags, y), inputs=inputs, **options)
