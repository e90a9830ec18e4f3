"""The side of a rule inside Trainer: functions of its module that check a run of Trainer.

`inspect(data)` gets samples of its data before it trains, a `surestep.doctor.data_case.DataCase`.
`review(case)` gets the run, a `surestep.doctor.case.Case`, and is called at the end; that of
a rule with severity "error" also while the run trains. Both yield a `Remark` for each mistake. They
read what the host knows: they draw no random number, change nothing and read no value of a device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from surestep.doctor.finding import Severity
from surestep.doctor.watcher import NOWHERE, Location

_LISTED = 6  # names in a message


@dataclass(frozen=True)
class Remark:
    """A mistake that a rule found in a run of Trainer.

    Attributes:
        message: what is wrong, with the numbers that show it.
        evidence: the numbers, as JSON has them.
        fix: what to do instead, if it is not the rule's FIX.
        severity: if it is not that of the rule.
        location: where in the user's source.
    """

    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""
    severity: Severity | None = None
    location: Location = NOWHERE


def list_names(names: Iterable[str]) -> str:
    """Return names for a message: the first ones in quotes, and the number of the others."""
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more


def format_seconds(seconds: float) -> str:
    """Return a time for a message, in milliseconds below 1 s."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
