"""Programs with one fault each, and the law, step and value that a proof must name.

What is expected was written down before the programs ran, except the step of those whose dataset
remembers: the checks at the start of a run read some samples too.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import surestep
from tests import tiny

COUNTS = {"forward": 0, "draws": 0}
OWN = random.Random(3)


@dataclass(frozen=True)
class Planted:
    """A program with a fault.

    Attributes:
        make_task: makes its task.
        law: that fails, by name.
        step: the first that differs.
        kind: of the first value that differs.
        value: the start of its name.
        source: a part of the module or line that is named.
        options: of its config.
        callbacks: of its run.
    """

    make_task: Callable[[], surestep.Task]
    law: str
    step: int | None
    kind: str
    value: str = ""
    source: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    callbacks: tuple[surestep.Callback, ...] = ()


class Rows(Dataset):
    """Rows of features with their classes."""

    def __init__(self, samples: int = 64) -> None:
        self.x, self.y = tiny.data(samples)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.read(index), self.y[index]

    def read(self, index: int) -> Tensor:
        """Return the features of a row."""
        return self.x[index]


class Net(nn.Module):
    """Two layers, with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 4) to (batch, 3)."""
        return self.last(self.between(torch.tanh(self.first(x))))

    def between(self, hidden: Tensor) -> Tensor:
        """Return hidden values (batch, 8)."""
        return hidden


def make(
    model: Callable[[], nn.Module] = Net, data: Callable[[], Dataset] = Rows, **parts: Any
) -> Callable[[], surestep.Task]:
    """Return a function that makes a task of a model and data."""

    def make_task() -> surestep.Task:
        usual = {"loss": "multiclass", "train": data(), "val": Rows(16)}
        return surestep.Task(model, **{**usual, **parts})

    return make_task


class ClockNoise(Net):
    """Draws from a generator that is seeded by the clock."""

    def between(self, hidden: Tensor) -> Tensor:
        """Add noise."""
        generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
        return hidden + torch.randn(hidden.shape, generator=generator)


class GlobalCount(Net):
    """Counts its forwards of training in a global."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by the count."""
        if self.training:
            COUNTS["forward"] += 1
        return hidden * (1 + COUNTS["forward"] / 100)


class CountsAlways(Net):
    """Counts its forwards in a buffer, in evaluations too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by the count."""
        COUNTS["forward"] += 1
        return hidden * (1 + COUNTS["forward"] / 100)


class OwnDropout(Net):
    """Scales by a number of its own generator of Python, in a global."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by a number."""
        return hidden * OWN.random() if self.training else hidden


class Augmented(Rows):
    """Adds noise that it remembers."""

    def read(self, index: int) -> Tensor:
        """Add noise that depends on when the sample was first read."""
        return self.x[index] + 0.01 * remember(index)


@cache
def remember(index: int) -> Tensor:
    """Return noise (4,)."""
    return torch.randn(4)


class InPlace(Rows):
    """Changes its samples each time it returns them."""

    def read(self, index: int) -> Tensor:
        """Scale a row in place."""
        return self.x[index].mul_(1.01)


class Counting(Rows):
    """Returns other values the more it has returned."""

    def read(self, index: int) -> Tensor:
        """Scale a row by how many were read."""
        COUNTS["draws"] += 1
        return self.x[index] * (1 + COUNTS["draws"] / 1000)


class Unseeded(Rows):
    """Has rows that are drawn from a generator of the system."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.x + random.SystemRandom().random()


class Remembering(nn.Module):
    """A loss with a memory that no checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = 1.0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, scaled by the number of calls."""
        COUNTS["forward"] += 1
        scale = 1 + 0.1 / COUNTS["forward"]
        return scale * nn.functional.cross_entropy(outputs, targets)


class Shrink(surestep.Callback):
    """Changes a weight after each step."""

    def on_step(self, state: Any, result: Any) -> None:
        """Scale the last bias."""
        with torch.no_grad():
            state.model.last.bias.mul_(0.9)


class AtStep(surestep.Callback):
    """Changes a weight after so many steps of a process."""

    taken = 0

    def on_step(self, state: Any, result: Any) -> None:
        """Scale the last bias after the second step."""
        self.taken += 1
        if self.taken == 2:
            with torch.no_grad():
                state.model.last.bias.mul_(2.0)


class ReadsMaximum(Net):
    """Reads a maximum in each forward."""

    def between(self, hidden: Tensor) -> Tensor:
        """Scale by the maximum."""
        return hidden / max(1.0, hidden.detach().abs().max().item())


class Centered(Net):
    """Subtracts the mean of its batch."""

    def between(self, hidden: Tensor) -> Tensor:
        """Subtract the mean of all samples."""
        return hidden - hidden.mean(0)


def repeat_samples(seed: int, epoch: int) -> list[int]:
    """Return the first sample twice, and the last one never."""
    return [0, *range(63)]


def ignore_epoch(seed: int, epoch: int) -> list[int]:
    """Return the same random order in each epoch."""
    return torch.randperm(64, generator=torch.Generator().manual_seed(seed)).tolist()


PLANTED = {
    "a generator that the clock seeds": Planted(
        make(ClockNoise), "same again", 1, "outputs", source="ClockNoise"
    ),
    "rows that the system draws": Planted(make(data=Unseeded), "same again", 1, "data"),
    "a count in a global": Planted(
        make(GlobalCount), "resuming", 2, "outputs", source="GlobalCount"
    ),
    "a count in evaluations": Planted(
        make(CountsAlways), "watching", 2, "outputs", source="CountsAlways"
    ),
    "an augmentation that is cached": Planted(
        make(data=lambda: Augmented(32)), "resuming", 2, "data", source="planted_programs.py"
    ),
    "samples that are changed in place": Planted(
        make(data=lambda: InPlace(32)), "resuming", 2, "data"
    ),
    "a count of the dataset": Planted(make(data=Counting), "resuming", 2, "data"),
    "a count of the dataset, in workers": Planted(make(data=Counting), "workers", 1, "data"),
    "a loss with a memory": Planted(make(loss=Remembering()), "resuming", 2, "loss"),
    "a callback that changes a weight": Planted(
        make(), "watching", 1, "parameters", "last.bias", callbacks=(Shrink(),)
    ),
    "a count in a global, and a skipped step": Planted(
        make(GlobalCount), "skipping", 3, "outputs", source="GlobalCount"
    ),
    "a mean of the batch": Planted(
        make(Centered), "splitting", 1, "outputs", source="planted_programs.py"
    ),
    "a sampler that repeats": Planted(
        make(sampler=surestep.samplers.custom(repeat_samples)), "order", None, ""
    ),
    "a sampler that ignores the epoch": Planted(
        make(sampler=surestep.samplers.custom(ignore_epoch)), "order", None, ""
    ),
    "a forward that reads a maximum": Planted(make(ReadsMaximum), "no stall", None, ""),
    "a callback that counts": Planted(
        make(), "resuming", 2, "parameters", "last.bias", callbacks=(AtStep(),)
    ),
}
CORRECT = {
    "a plain program": make(),
    "a generator in a global, which a run seeds": make(OwnDropout),
    "an optimizer of torch": make(optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1)),
    "tensors in memory": make(train=tiny.data(40)),
    "layers that depend on the batch": make(lambda: tiny.model(dropout=0.3)),
}
