"""Compare what the ranks that train one model with DistributedDataParallel saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import nn


class ReplicasWatcher(Watcher):
    """A rule that compares ranks which average their gradients.

    Attributes:
        seen: of what is compared.
    """

    def __init__(self) -> None:
        self.seen = Tally()
        self._has_replicas = False

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._has_replicas |= run.averages_gradients(module)

    def locate_facts(self, **facts: Any) -> dict[str, Any] | None:
        """Return the facts of a rank for `report_rank`; None if it averages no gradients."""
        location = self.seen.location.file, self.seen.location.line
        return {**facts, "location": location} if self._has_replicas else None


def report_replicas(facts: Mapping[int, Any], message: str, evidence: Mapping[str, Any]) -> Problem:
    """Return the problem of all ranks that have facts, where the first of them saw it."""
    location = Location(*facts[min(facts)]["location"])
    return Problem(message, {**evidence, "ranks": sorted(facts)}, location=location, since_step=1)
