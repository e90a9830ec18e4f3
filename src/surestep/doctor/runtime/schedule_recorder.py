"""What a run does with its learning rate schedules."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Location
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

SCHEDULES = "schedules"  # the name of the recorder among the rules
_MOST = 32  # schedules that are followed


@dataclass
class Seen(Occurrence):
    """A schedule, and the steps since it was made.

    Attributes:
        name: "StepLR".
        location: where it was made.
        since_step: the step that followed.
        values: its settings, such as `T_max`; they are read when it is made.
        numbers: integers that the function of a LambdaLR takes from around it.
        optimizer: of which it sets the learning rate.
        steps: of the schedule.
        optimizer_steps: of its optimizer.
        skipped: steps of the schedule since whose last one a scaler has skipped that of the
            optimizer.
        before: steps of the schedule before the first one of the optimizer.
        first_at: steps of all optimizers before the first step of the schedule.
        lines: of the first two steps.
        epochs: iterations over a DataLoader with more than one step of the optimizer.
        batches: steps of the optimizer in the last of these iterations.
        is_part: whether another schedule steps it.
        is_scaled: whether a scaler takes the steps of its optimizer.
        is_skipped: whether the scaler may have skipped the last one.
        begun: steps of the optimizer before the last iteration over each DataLoader.
        ended_at: steps of the optimizer before the end of the last one that trained.
    """

    name: str
    location: Location
    since_step: int
    values: dict[str, Any]
    numbers: frozenset[int]
    optimizer: weakref.ref[Optimizer]
    steps: int = 0
    optimizer_steps: int = 0
    skipped: int = 0
    before: int = 0
    first_at: int = 0
    lines: list[Location] = field(default_factory=list)
    epochs: int = 0
    batches: int = 0
    is_part: bool = False
    is_scaled: bool = False
    is_skipped: bool = False
    begun: WeakKeyDictionary[DataLoader[Any], int] = field(default_factory=WeakKeyDictionary)
    ended_at: int = 0

    @property
    def is_per_batch(self) -> bool:
        """Whether it is stepped for each step of the optimizer."""
        return self.epochs > 0 and self.steps >= 0.9 * self.optimizer_steps

    @property
    def is_per_epoch(self) -> bool:
        """Whether it is stepped once for each iteration over a DataLoader."""
        return self.epochs > 1 and abs(self.steps - self.epochs) <= 1 < self.batches

    def counts_batches(self, length: int) -> bool:
        """Return whether a length is the number of batches of the run."""
        return length in (self.epochs * self.batches, self.optimizer_steps)


class ScheduleWatcher(Watcher):
    """A rule about schedules; `run.schedules` is there if there is such a rule."""


class ScheduleRecorder(Watcher):
    """Records what a run does with its schedules; it is called before the rules.

    Attributes:
        seen: the schedules of torch that were made.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._of: WeakKeyDictionary[Any, Seen] = WeakKeyDictionary()
        self._by_optimizer: WeakKeyDictionary[Optimizer, list[Seen]] = WeakKeyDictionary()

    def on_schedule(self, run: Script, schedule: Any) -> None:
        # The steps of a schedule with its own `step` are not seen.
        is_of_torch = type(schedule).step.__module__.startswith("torch.")
        optimizer = getattr(schedule, "optimizer", None)
        if not is_of_torch or optimizer is None or len(self.seen) >= _MOST:
            return
        for part in getattr(schedule, "_schedulers", ()):
            if part in self._of:
                self._of[part].is_part = True
        values = {
            name: value
            for name, value in vars(schedule).items()
            if isinstance(value, (int, float)) or name == "milestones"
        }
        numbers = _list_numbers(getattr(schedule, "lr_lambdas", ()))
        name, reference = type(schedule).__name__, weakref.ref(optimizer)
        made = Seen(name, run.locate(), run.step + 1, values, numbers, reference)
        self.seen.append(made)
        self._of[schedule] = made
        self._by_optimizer.setdefault(optimizer, []).append(made)

    def find(self, schedule: Any) -> Seen | None:
        """Return what is known of a schedule; None if it is not followed."""
        return self._of.get(schedule)

    def on_schedule_step(self, run: Script, schedule: Any, arguments: tuple[Any, ...]) -> None:
        seen = self.find(schedule)
        if seen is None:
            return
        seen.steps += 1
        if len(seen.lines) < 2:
            seen.lines.append(run.locate())
            if seen.steps == 1:
                seen.first_at = run.step
        # In a hook of the optimizer, its step is done, though it is not counted yet.
        seen.before += seen.optimizer_steps == 0 and not run.in_step
        seen.skipped += seen.is_skipped
        seen.is_skipped = False

    def on_scaler_step(self, run: Script, scaler: Any, optimizer: Optimizer) -> None:
        for seen in self._by_optimizer.get(optimizer, ()):
            seen.is_scaled = seen.is_skipped = True  # until the step comes

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        if not self.seen:  # faster than to look for the optimizer
            return
        for seen in self._by_optimizer.get(optimizer, ()):
            seen.optimizer_steps += 1
            seen.is_skipped = False

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        for seen in self.seen:
            seen.begun[loader] = seen.optimizer_steps

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        for seen in self.seen:
            begun_at = seen.begun.pop(loader, seen.optimizer_steps)
            batches = seen.optimizer_steps - max(begun_at, seen.ended_at)
            if batches > 1:
                seen.epochs, seen.batches = seen.epochs + 1, batches
                seen.ended_at = seen.optimizer_steps


def _list_numbers(functions: Iterable[Any]) -> frozenset[int]:
    """Return the integers among the closures and the fixed arguments of functions."""
    values: list[Any] = []
    for function in functions:
        values += getattr(function, "args", ())  # of a functools.partial
        values += getattr(function, "keywords", {}).values()
        for cell in getattr(function, "__closure__", None) or ():
            try:
                values.append(cell.cell_contents)
            except ValueError:  # it is empty
                continue
    return frozenset(value for value in values if type(value) is int)
