"""A device with little memory: the functions of a Task run out of it on too many rows."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import surestep
from tests.laws.support.tasks import rows, session_of, snapshot

SIZES = {1: 16, 3: 8, 7: 2}  # by the first step with each
LIMITS = {3: 8, 7: 3}  # rows that fit
HALVED = {1: 16, 3: 8, 7: 4}  # if each of these steps runs out once
FIT: dict[str, Any] = {"micro_batch_size": "fit"}
OPTIONS: dict[str, Any] = {
    "max_steps": 10,
    "batch_size": 16,
    "optim": {"name": "adamw", "lr": 0.01},
    "max_grad_norm": 0.1,
    "logging": {"every": "1 step"},
}

OUT_OF_MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    MemoryError("Unable to allocate 2.00 GiB"),
)


class LimitedMemory(surestep.Callback):
    """Has memory for some rows from a step on; knows the step as a callback of the run.

    Args:
        limits: the rows that fit, by the first step with this limit.
        place: where it runs out: "transform", "forward", "loss", "backward" or "clipping".
        error: the error that is raised.
    """

    def __init__(
        self, limits: dict[int, int], place: str = "forward", error: BaseException | None = None
    ) -> None:
        self.limits, self.place = limits, place
        self.error = error or OUT_OF_MEMORY[0]
        self.step = self.batches = self.ran_out = self._failed = 0

    def on_batch(self, state: Any, batch: Any) -> None:
        self.step = state.progress.step + 1
        self.batches += 1

    def use(self, place: str, count: int) -> None:
        """Use memory for rows; `place` is where."""
        first = max((step for step in self.limits if step <= self.step), default=None)
        if place == self.place and first is not None and count > self.limits[first]:
            self.ran_out += 1
            raise self.error

    def use_once(self, place: str) -> None:
        """Run out of memory at the first attempt of each step with a limit."""
        if place == self.place and self.step in self.limits and self.step != self._failed:
            self._failed = self.step
            self.ran_out += 1
            raise self.error


class _Use(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, memory: LimitedMemory) -> Tensor:
        ctx.memory = memory
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.memory.use("backward", len(grad))
        return grad, None


class Net(nn.Module):
    """Drops, draws from all generators, counts in a buffer and in an attribute, and logs."""

    def __init__(self, memory: LimitedMemory) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.memory = memory
        self.inner, self.drop, self.outer = nn.Linear(10, 16), nn.Dropout(0.3), nn.Linear(16, 3)
        self.register_buffer("mean", torch.zeros(10))
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
            self.forwards += 1
            x = x + 0.01 * np.random.rand() + 0.01 * random.random()
        hidden = self.drop(self.inner(x).relu())
        if self.training:
            surestep.log("hidden", hidden.detach().mean())
            self.memory.use("forward", len(x))
        return self.outer(_Use.apply(hidden, self.memory))


class PlainNet(Net):
    """Draws from torch's generator alone, so numpy's and Python's are only watched."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.inner(x).relu())
        if self.training:
            self.memory.use("forward", len(x))
        return self.outer(_Use.apply(hidden, self.memory))


class LateDraws(PlainNet):
    """Begins to draw from numpy's and Python's generators in a step that runs out of memory."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.memory.step >= 3:
            x = x + 0.01 * np.random.rand() + 0.01 * random.gauss()
        return super().forward(x)


def pad(samples: list[Any]) -> tuple[Tensor, Tensor]:
    """Collate with noise, so that samples depend on the micro-batch that they are in."""
    x = torch.stack([x for x, _ in samples])
    return x + 0.1 * torch.randn(10) * np.random.rand(), torch.tensor([int(y) for _, y in samples])


class Stream(IterableDataset):
    """Samples with noise of the generators, in an order of its own."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = rows(55)
        for index in range(55):
            yield x[index] + 0.1 * torch.randn(10), y[index]


def noisy_transform(memory: LimitedMemory) -> Any:
    """Return a batch_transform that writes into its inputs, and draws."""

    def transform(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        inputs.add_(0.1 * torch.randn_like(inputs))
        memory.use_once("transform")
        return inputs, targets

    return transform


def loss_of(memory: LimitedMemory) -> Any:
    """Return a mean cross-entropy."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            memory.use("loss", len(outputs))
        return nn.functional.cross_entropy(outputs, targets)

    return loss


def task_of(memory: LimitedMemory, **parts: Any) -> surestep.Task:
    net = parts.pop("net", Net)
    usual: dict[str, Any] = {"train": rows(55), "loss": loss_of(memory)}
    return surestep.Task(net(memory), **usual | parts)


def losses_of(run: surestep.Run) -> list[Any]:
    events = [event for event in run.events() if event["event"] == "steps"]
    return [(event["loss"], event["grad_norm"], event.get("logged")) for event in events]


def train_fitted(
    folder: Path, memory: LimitedMemory, make: Callable[[LimitedMemory], surestep.Task], **more: Any
) -> dict[str, Any]:
    with session_of(
        make(memory), folder, callbacks=[memory], micro_batch_size="fit", **OPTIONS | more
    ) as session:
        steps = [result.step for result in session.steps()]
    assert steps == list(range(1, 11))
    return snapshot(session)


def train_sized(
    folder: Path,
    make: Callable[[LimitedMemory], surestep.Task],
    sizes: dict[int, int] = SIZES,
    **more: Any,
) -> dict[str, Any]:
    """Train in the sizes that are set, each from its step on."""
    ends = [*(first - 1 for first in sizes), 10][1:]
    for size, end in zip(sizes.values(), ends, strict=True):
        memory = LimitedMemory({})
        session = session_of(
            make(memory), folder, callbacks=[memory], micro_batch_size=size, **OPTIONS | more
        )
        with session:
            for result in session.steps():
                if result.step == end:
                    break
            session.save()
    return snapshot(session)
