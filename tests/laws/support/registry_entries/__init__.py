"""An entry for each name in each registry: losses, optimizers, schedules, averages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tests.laws.support.tasks import mlp, rows


def classes() -> dict[str, Any]:
    """Build the parts of a classification Task."""
    return {"model": mlp(), "loss": nn.CrossEntropyLoss(), "train": rows()}


@dataclass(frozen=True)
class Wrong:
    """Options or parts that are rejected, and words of the error."""

    sentence: str
    options: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Entry:
    """One optimizer, schedule or loss, in a Task that trains with it.

    Attributes:
        wrong: what is rejected with it.
        options: of the Config, groups as dicts.
        parts: builds the parts of the Task.
        tolerance: maximal |a - b| / |a| between split and full batches; None if the loss is not
            separable, which the Plan must then report.
    """

    wrong: Wrong
    options: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[], dict[str, Any]] = classes
    tolerance: float | None = 1e-6
