"""Buffers of every kind are part of the state: of a loss, sparse, filled only in training, masks.

They are resumed bitwise (law 2), evaluations do not change them (law 4), and skipped steps restore
them (law 5).
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import NonFiniteError
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot, train

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
Folder = Callable[[], Path]
OPTIONS = {"max_steps": 8, "batch_size": 9, "micro_batch_size": 5}


class Model(nn.Module):
    """A model with one buffer of an unusual kind between two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(10, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)).relu())

    def between(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Filled(Model):
    """Creates a mean in its first training step."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("mean", None, persistent=persistent)
        self.begins = 0

    def between(self, x: Tensor) -> Tensor:
        self.begins -= self.training
        if self.training and self.begins < 0:
            mean = x.detach().mean(0)
            self.mean = mean if self.mean is None else 0.9 * self.mean + 0.1 * mean
        return x if self.mean is None else x - self.mean


class Graph(Model):
    """Multiplies by a sparse matrix, as a GCN does."""

    def __init__(self, *, persistent: bool, layout: str = "sparse_coo") -> None:
        super().__init__()
        dense = torch.eye(8) + torch.eye(8).roll(1, 0)
        matrix = dense.to_sparse() if layout == "sparse_coo" else dense.to_sparse_csr()
        self.register_buffer("adjacency", matrix, persistent=persistent)

    def between(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.adjacency, x.t()).t()


class Masked(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))
        self.register_buffer("scale", torch.ones(8))

    def between(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale += 0.1
        weights = (self.mask.softmax(1) * self.scale).detach()
        return x @ weights.t()


class Observed(Model):
    """Updates its ranges in eval mode too, as observers of quantization do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("seen", None)

    def between(self, x: Tensor) -> Tensor:
        self.largest = torch.maximum(self.largest, x.detach().abs().max())
        if not self.training:
            self.seen = x.detach().mean()
        return x / (1 + self.largest) + (0 if self.seen is None else self.seen)


class Centered(nn.Module):
    """A loss with a moving average, as in self-distillation."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))
        self.register_buffer("calls", None)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(outputs - self.center, targets)
        self.center.mul_(0.9).add_(outputs.detach().mean(0), alpha=0.1)
        self.calls = torch.ones(()) if self.calls is None else self.calls + 1
        return loss


MODELS: dict[str, Callable[[], nn.Module]] = {
    "filled in training": lambda: Filled(persistent=True),
    "filled in training, not persistent": lambda: Filled(persistent=False),
    "sparse": lambda: Graph(persistent=True),
    "sparse csr": lambda: Graph(persistent=True, layout="sparse_csr"),
    "sparse, not persistent": lambda: Graph(persistent=False),
    "mask of -inf": Masked,
    "observer": Observed,
}


def task_of(model: nn.Module, loss: nn.Module | None = None) -> surestep.Task:
    own = {"loss_is_separable": False} if loss is not None else {}
    return surestep.Task(model, loss or nn.CrossEntropyLoss(), rows(44), val=rows(20), **own)


def state_of(session: Any) -> dict[str, Tensor]:
    """Copy all state of a run, with the buffers of the model and of the loss."""
    kept = {
        name: tensor for name, tensor in snapshot(session).items() if tensor.layout is torch.strided
    }
    loss = session.loop.context.loss.module
    for root, module in (("model", session.model), ("loss", loss)):
        for name, buffer in module.named_buffers():
            kept[f"{root}: {name}"] = buffer.to_dense().clone()
    return kept


def check_resume(folder: Folder, make: Callable[[], surestep.Task], **more: Any) -> None:
    """Compare a run with one that evaluates after each step, is stopped and is resumed."""
    options = {**OPTIONS, **more}
    whole = state_of(train(make(), folder(), **options))
    run = folder()
    for end in (4, None):
        with session_of(make(), run, **options) as session:
            for result in session.steps():
                session.evaluate()
                if result.step == end:
                    session.save()
                    break
    assert_same(whole, state_of(session))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("average", ["none", "ema"])
def test_buffers_are_resumed_and_not_changed_by_evaluations(folder, kind, average):
    buffers = {} if average == "none" else {"buffers": "average"}
    check_resume(folder, lambda: task_of(MODELS[kind]()), average={"kind": average, **buffers})


def test_buffers_of_a_loss_are_resumed_and_not_changed_by_evaluations(folder):
    check_resume(folder, lambda: task_of(Filled(persistent=True), Centered()))


def test_mask_of_infinities_has_no_average(folder):
    average = {"kind": "ema", "decay": 0.5, "buffers": "average"}
    with session_of(task_of(Masked()), folder(), **OPTIONS, average=average) as session:
        list(session.steps())
        tensors = session.state.average.tensors
        assert "mask" not in tensors
        assert not torch.equal(tensors["scale"], session.model.scale)
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
        assert all(value == value for value in session.evaluate().values())


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])  # decided on the device, on the host
@pytest.mark.parametrize("kind", MODELS)
def test_skipped_step_restores_buffers(folder, kind, on_nonfinite):
    x, y = rows(18)
    x[9:] = torch.nan
    model = MODELS[kind]()
    options = {"batch_size": 9, "data": {"shuffle": False}, "on_nonfinite": on_nonfinite}
    task = surestep.Task(model, Centered(), (x, y), loss_is_separable=False)
    with session_of(task, folder(), max_steps=2, **options) as session:
        steps = session.steps()
        if isinstance(model, Filled):
            model.begins = 1  # in the skipped step
        next(steps)
        before = state_of(session)
        with pytest.raises(NonFiniteError) if on_nonfinite == "raise" else nullcontext():
            list(steps)
        assert session.state.progress.step == (1 if on_nonfinite == "raise" else 2)
        assert_same(before, state_of(session))
    assert not isinstance(model, Filled) or model.mean is None
