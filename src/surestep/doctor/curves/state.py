"""The states that a curve can have, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Name = Literal[
    "nonfinite",
    "diverging",
    "stuck",
    "flat",
    "overfitting",
    "leaking",
    "oscillating",
    "plateau",
    "falling",
    "unclear",
]
TITLES: dict[Name, str] = {
    "nonfinite": "NaN or infinite",
    "diverging": "diverging",
    "stuck": "stuck at log(classes)",
    "flat": "flat from the start",
    "overfitting": "overfitting",
    "leaking": "leaking, or too easy",
    "oscillating": "oscillating",
    "plateau": "plateau",
    "falling": "falling",
    "unclear": "not clear yet",
}
HEALTHY: tuple[Name, ...] = ("plateau", "falling", "unclear")


@dataclass(frozen=True)
class CurveState:
    """A state of a curve.

    Attributes:
        name: of the state, a key of TITLES.
        message: what was measured, in one or two sentences.
        since_step: the step from which on the curve has this state; None if it is all of it.
        evidence: the numbers of the message.
    """

    name: Name
    message: str
    since_step: int | None = None
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing seems to be wrong."""
        return self.name in HEALTHY

    @property
    def title(self) -> str:
        """The state as a heading, such as "overfitting since step 190"."""
        since = "" if self.since_step is None else f" since step {self.since_step:,}"
        return f"{TITLES[self.name]}{since}"
