"""What the schedule writes into the parameter groups of an optimizer before each step.

A value in a group that is not the one written last was set by your code, and counts: the schedule
multiplies that learning rate from then on, and a momentum stays as it was set.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from surestep.base.errors import ConfigError, TaskError
from surestep.engine.schedule.lr import momentum, no_momentum_message
from surestep.engine.schedule.registry import Factor, ScheduleSpec

NO_CHANGE = (
    "Their schedule, clipping and record would be wrong, and a resumed run would not have them. "
    "Add all layers to the model before you make the Task. To train one later, freeze it until "
    "then: Optim(groups=[surestep.ParamGroup('head', freeze='500 steps')])."
)


@dataclass
class GroupRate:
    """The values of one group; `written` ones are in the group unless your code set others.

    Attributes:
        peak: the learning rate of the config.
        lr: the learning rate at a factor of the schedule of `factor`.
        start: the learning rate that the run began with.
        momentum: the one before the first step.
        own_momentum: the one that your code set, which the schedule does not change.
        start_momentum: the one that the run began with.
    """

    peak: float
    lr: float
    written: float
    start: float
    momentum: float | None
    written_momentum: float | None
    start_momentum: float | None
    factor: float = 1.0
    own_momentum: float | None = None


class GroupSchedule:
    """Writes learning rates and momenta into the groups of an optimizer.

    Args:
        optimizer: whose groups have the peak rates.
        factor_at: the factor on the peaks by steps taken.
        shape: whether and how the momentum is cycled.

    Attributes:
        factor_at: as passed.
        factor: of the rates that are in the groups; None before the first step of a process, when
            they have the values of the config or yours.
        groups: the values of each group.
        cycles_momentum: whether the momentum is cycled.

    Raises:
        ConfigError: it is cycled, and a group has neither a momentum nor betas.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, factor_at: Factor, shape: ScheduleSpec | None = None
    ) -> None:
        self.optimizer = optimizer
        self.factor_at = factor_at
        self._momentum = None if shape is None else momentum(shape)
        self.factor: float | None = None
        self.cycles_momentum = self._momentum is not None
        self.groups: list[GroupRate] = []
        for group in optimizer.param_groups:
            own = None
            if self._momentum is not None:
                own = _read_momentum(group)
                if own is None and shape is not None:
                    raise ConfigError(no_momentum_message(shape.name))
            lr = float(group["lr"])
            self.groups.append(GroupRate(lr, lr, lr, lr, own, own, own))

    @property
    def peak(self) -> float:
        """The peak learning rate of the first group."""
        return self.groups[0].peak

    def write(self, steps_taken: int) -> None:
        """Write the values of a step into the groups, after the changes in them are noted.

        `train_step` does the same without calls.
        """
        self.note_changes()
        self._write_rates(self.factor_at(steps_taken))
        self.write_momentum(steps_taken)

    def write_momentum(self, steps_taken: int) -> None:
        """Write the momentum of a step into the groups, if it is cycled."""
        cycled = None if self._momentum is None or steps_taken < 0 else self._momentum(steps_taken)
        for group, own in self._pairs():
            value = cycled if own.own_momentum is None else own.own_momentum
            if value is not None:
                _write_momentum(group, value)
                own.written_momentum = value

    def note_changes(self) -> None:
        """Take over what your code has set in the groups."""
        if self.factor is None:
            self._note_start()
            return
        for group, own in self._pairs():
            if group["lr"] is not own.written and group["lr"] != own.written:
                # At a factor of 0, no multiple gives the new rate: it is the peak.
                own.lr, own.factor = float(group["lr"]), self.factor or 1.0
                own.written = own.lr
            if self._momentum is not None and _read_momentum(group) != own.written_momentum:
                own.own_momentum = own.written_momentum = _read_momentum(group)

    def start(self, steps_taken: int) -> None:
        """Take over what was set before the first step of this process; write current values."""
        self.note_changes()
        self.show(steps_taken)

    def show(self, steps_taken: int) -> None:
        """Write the values of the last step into the groups."""
        self._write_rates(self.factor_at(steps_taken - 1) if steps_taken else 1.0)
        self.write_momentum(steps_taken - 1)

    def changes(self, index: int) -> dict[str, float]:
        """Return what your code has set in a group, for a checkpoint; empty if nothing."""
        self.note_changes()
        own, found = self.groups[index], dict[str, float]()
        if (own.lr, own.factor, own.start) != (own.peak, 1.0, own.peak):
            found |= {"lr": own.lr, "factor": own.factor, "start": own.start, "peak": own.peak}
        if own.own_momentum is not None:
            found["momentum"] = own.own_momentum
        if own.start_momentum is not None and own.start_momentum != own.momentum:
            found["start_momentum"] = own.start_momentum
        return found

    def load(self, saved: Sequence[Mapping[str, float]]) -> None:
        """Load what `changes` returned for each group; the groups have the values of the config.

        `start` or `show` follows. If the config has a different peak now, the rates change with it.
        """
        self.factor = None
        for (group, own), values in zip(self._pairs(), saved, strict=True):
            peak = values.get("peak", own.peak)
            scale = own.peak / peak if peak not in (0, own.peak) else 1.0
            own.lr = values.get("lr", peak) * scale if values else own.peak
            own.start = values.get("start", peak) * scale
            own.factor = values.get("factor", 1.0)
            group["lr"] = own.written = own.peak
            own.own_momentum = values.get("momentum")
            own.start_momentum = values.get("start_momentum", own.momentum)
            if own.momentum is not None:
                _write_momentum(group, own.momentum)
                own.written_momentum = own.momentum

    def unscheduled(self, index: int, name: str, value: Any) -> Any:
        """Return the value of an option of a group without what the schedule wrote there."""
        built = self.groups[index].momentum
        if built is None or name not in ("betas", "momentum"):
            return value
        if name == "betas":
            return (built, *value[1:])
        return value if "betas" in self.optimizer.param_groups[index] else built

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore what `write` changes outside of the optimizer."""
        factor, groups = self.factor, [copy(own) for own in self.groups]
        try:
            yield
        finally:
            self.factor, self.groups = factor, groups

    def _note_start(self) -> None:
        """Take over what was set before the first step of this process.

        In a resumed run, the same code sets it again: it is a change only if it differs from what
        the run began with.
        """
        for group, own in self._pairs():
            if group["lr"] not in (own.written, own.start):
                own.lr = own.start = float(group["lr"])
                own.factor = 1.0
            value = _read_momentum(group)
            is_cycled = self._momentum is not None
            if is_cycled and value not in (own.written_momentum, own.start_momentum):
                own.own_momentum = own.start_momentum = value

    def _write_rates(self, factor: float) -> None:
        for group, own in self._pairs():
            group["lr"] = own.written = own.lr * (factor / own.factor)
        self.factor = factor

    def _pairs(self) -> Iterator[tuple[dict[str, Any], GroupRate]]:
        # Loading a state replaces the groups.
        self.check_count()
        return zip(self.optimizer.param_groups, self.groups, strict=True)

    def check_count(self) -> None:
        """Check that no code added or removed a group: it would have no schedule, and no record.

        Raises:
            TaskError: some code did.
        """
        found, built = len(self.optimizer.param_groups), len(self.groups)
        if found != built:
            raise TaskError(
                f"The optimizer has {found} parameter groups, and {built} when it was built: your "
                f"code added or removed some. {NO_CHANGE}"
            )


def _read_momentum(group: Mapping[str, Any]) -> float | None:
    """Return the momentum or the first beta of a group; None if it has neither."""
    if "betas" in group:
        return float(group["betas"][0])
    return float(group["momentum"]) if "momentum" in group else None


def _write_momentum(group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value
