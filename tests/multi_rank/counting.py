"""Steps that change plain attributes, in one process and on several ranks."""

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import surestep
from surestep.trainer.session import Session
from tests.multi_rank.cases import half, opened, result, task


class Counting(nn.Module):
    """Weakens its outputs with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.n = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return self.layer(x) / self.n


class Fading:
    """A batch_transform that weakens its inputs with each call."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.n += 1
        return x * (1 + 1 / self.n), y


class Differing(Counting):
    """Counts in a different way on each rank after some calls, and keeps means of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.n > 5:
            self.n += int(os.environ["RANK"])
        if self.training:
            self.means.append(float(x.mean()))
        return super().forward(x)


def counting() -> surestep.Task:
    return task(model=Counting, batch_transform=Fading())


def counted(
    folder: Path,
    weights: Callable[[Session], dict[str, Tensor]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Stop after 7 steps, resume, and evaluate after each step."""
    half(folder, counting, **options)
    with opened(folder, counting(), **options) as session:
        steps = [(float(step.loss), session.evaluate()) for step in session.steps()]
        found = {"losses": [loss for loss, _ in steps], "metrics": dict(steps[-1][1])}
        found |= {} if weights is None else {"weights": weights(session)}
        return {**result(session), **found}


def differing(folder: Path) -> dict[str, Any]:
    """Return the warnings of a run whose ranks count differently, and its notices."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with opened(folder, task(model=Differing), logging={"every": "4 steps"}) as session:
            list(session.steps())
    notices = [event["text"] for event in session.run.events() if event["event"] == "notice"]
    return {"warnings": [str(each.message) for each in shown], "notices": notices}
