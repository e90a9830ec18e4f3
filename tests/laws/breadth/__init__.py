"""Everything there is to train with: an entry for each name in each table of surestep."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tests.laws.tasks import mlp, rows


def classes() -> dict[str, Any]:
    """The parts of a Task that classifies, built anew."""
    return {"model": mlp(), "loss": nn.CrossEntropyLoss(), "train": rows()}


@dataclass(frozen=True)
class Wrong:
    """Options or parts that are refused, by a sentence that says what to do."""

    sentence: str
    options: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Entry:
    """One optimizer, schedule or loss, in a Task that trains with it.

    Attributes:
        wrong: what is refused with it.
        options: of the Config, groups as dicts.
        parts: of the Task, built anew at each call.
        tolerance: how far a cut run may be from an uncut one, |a - b| / |a|; None where the entry
            is declared as not splitting, which the Plan must then say.
    """

    wrong: Wrong
    options: dict[str, Any] = field(default_factory=dict)
    parts: Callable[[], dict[str, Any]] = classes
    tolerance: float | None = 1e-6
