"""Everything that changes during training, and therefore exactly what a checkpoint holds."""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.distributed.shards import ShardedStateProvider
from surestep.engine.schedule.groups import GroupSchedule
from surestep.engine.schedule.lr import PlateauState
from surestep.engine.state.average import AveragedWeights
from surestep.engine.state.loss_spikes import SpikeDetector
from surestep.engine.step_outcome import StepOutcome
from surestep.engine.value import Value

WHOLE = "model"  # what the only optimizer of a task is called


class Progress(NamedTuple):
    """How far the run is. A step that was skipped counts as a step, not as a step taken."""

    step: int = 0  # global batches consumed
    steps_taken: int = 0  # updates of the parameters; the schedule follows them
    epoch: int = 0
    position: int = 0  # samples of this epoch that were consumed
    items: float = 0.0  # of the whole run


@dataclass
class StepCounts:
    """Steps that did not update the parameters, by reason, and those that were clipped."""

    overflow: int = 0
    nonfinite: int = 0
    no_items: int = 0
    after_spike: int = 0
    clipped: int = 0

    @property
    def skipped(self) -> int:
        """Count the steps that updated nothing."""
        return self.overflow + self.nonfinite + self.no_items + self.after_spike

    def add(self, outcome: StepOutcome, *, left_out: bool = False) -> None:
        """Count a step that updated nothing; without a reason, it had no items."""
        self.overflow += outcome.overflow
        self.nonfinite += outcome.nonfinite
        self.after_spike += left_out
        self.no_items += not (outcome.overflow or outcome.nonfinite or left_out)


@dataclass
class BestMetric:
    """The best evaluation, and the number of evaluations since.

    `measured` is what the latest metrics are of: the weights, or their average. `data` is a digest
    of the samples that the metric is measured on, None if it is not known. `is_due` is whether this
    step was not evaluated yet: a run that was stopped does so first.
    """

    metric: str | None = None
    best: float | None = None
    best_step: int | None = None
    since_best: int = 0
    latest_step: int | None = None
    latest: dict[str, Value] = field(default_factory=dict)
    measured: Literal["weights", "average"] = "weights"
    data: str | None = None
    is_due: bool = False

    def measure_on(self, data: str | None) -> bool:
        """Measure on these samples from now on; return whether the values so far are of others.

        Then nothing of them counts.
        """
        is_other = None not in (data, self.data) and data != self.data
        if is_other:
            self.reset()
            self.latest_step, self.latest = None, {}
        self.data = data if data is not None else self.data
        return is_other

    def reset(self) -> None:
        """Forget the best one, and the evaluations since."""
        self.best = self.best_step = None
        self.since_best = 0

    def update(
        self,
        value: float,
        step: int,
        *,
        mode: Literal["min", "max"],
        delta: float,
        counts: bool = True,
    ) -> bool:
        """Add a value of the metric; return whether it is the best so far.

        One that is not finite is never the best. `counts` is whether an evaluation without
        improvement counts for early stopping.
        """
        sign = 1 if mode == "min" else -1
        if math.isfinite(value) and (self.best is None or (self.best - value) * sign > delta):
            self.best, self.best_step, self.since_best = value, step, 0
            return True
        self.since_best += counts
        return False


class Stateful(Protocol):
    """Something with a state, as numbers, text, tensors, or lists and dicts of those."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as it is now."""
        ...

    def load_state_dict(self, state: Any, /) -> object:
        """Take up the state of another time."""
        ...


class UnfreezeSchedule(Protocol):
    """Freezes parameters, and unfreezes them after a number of steps taken."""

    starts: Mapping[int, int]

    def is_due(self, steps_taken: int) -> bool:
        """Return whether `apply` would change something."""
        ...

    def apply(self, steps_taken: int) -> None:
        """Freeze and unfreeze parameters."""
        ...


@dataclass
class State:
    """Everything that changes during training and is saved in a checkpoint.

    Attributes:
        model: the model.
        optimizers: by name; the optimizer of a task with only one is called "model".
        scaler: the loss scale.
        progress: step, epoch and position in the data.
        counts: number of skipped and clipped steps, by reason.
        best: the best metric so far.
        plateau: state of `reduce_on_plateau`.
        plateaus: the same of optimizers with their own `reduce_on_plateau`, by name; saved
            as `callback_states`.
        metadata: numbers and text to save with the run.
        average: the average of the weights, if there is one.
        base: fingerprints of frozen parameters that checkpoints leave out.
        base_sums: sums that show whether they have changed.
        built: buffers that the model's state_dict leaves out, before the first step; those that
            have changed since are saved.
        callback_states: the callbacks and other objects that save a state, by name.
        spikes: recent losses and skipped ranges of the spike detection.
        keeper: provides the full tensors of a strategy that stores parameters and optimizer state
            outside of `model` and `optimizers`.
        schedules: what sets learning rates and momenta before each step, by optimizer.
        unfreezing: what the options freeze for a number of steps taken.
        built_options: the options of each optimizer's groups before the first step.
        built_names: the name of each parameter of the model then, by its id.
        built_trained: the ids of those with requires_grad=True.
    """

    model: nn.Module
    optimizers: dict[str, torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    progress: Progress = field(default_factory=Progress)
    counts: StepCounts = field(default_factory=StepCounts)
    best: BestMetric = field(default_factory=BestMetric)
    plateau: PlateauState = field(default_factory=PlateauState)
    plateaus: dict[str, PlateauState] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    average: AveragedWeights | None = None
    base: dict[str, str] = field(default_factory=dict)
    base_sums: dict[str, Tensor] = field(default_factory=dict)
    built: dict[str, Tensor | None] = field(default_factory=dict)
    callback_states: dict[str, Stateful] = field(default_factory=dict)
    spikes: SpikeDetector = field(default_factory=SpikeDetector)
    keeper: ShardedStateProvider | None = None
    schedules: dict[str, GroupSchedule] = field(default_factory=dict)
    unfreezing: UnfreezeSchedule | None = None
    built_options: dict[str, list[dict[str, Any]]] = field(init=False)
    built_names: dict[int, str] = field(init=False)
    built_trained: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.built_names = {id(p): name for name, p in self.model.named_parameters()}
        self.built_trained = {id(p) for p in self.model.parameters() if p.requires_grad}
        self.built_options = {
            name: [copied_options(group) for group in optimizer.param_groups]
            for name, optimizer in self.optimizers.items()
        }

    def read_frozen(self) -> dict[str, bool]:
        """Return what your code has frozen or unfrozen, for `load_frozen`.

        Returns:
            requires_grad by parameter name: of the parameters of an optimizer that are not as the
            options have them, or will have them before the next step.
        """
        due = self.unfreezing is not None and self.unfreezing.is_due(self.progress.steps_taken)
        return {
            name: parameter.requires_grad
            for name, parameter, start in self._trained()
            if parameter.requires_grad is not self._is_trained(start) and not (start and due)
        }

    def load_frozen(self, frozen: Mapping[str, bool]) -> None:
        """Freeze and unfreeze the parameters of the optimizers as they were at a save.

        Args:
            frozen: what `read_frozen` returned.
        """
        if self.unfreezing is not None:
            self.unfreezing.apply(self.progress.steps_taken)
        for name, parameter, start in self._trained():
            is_trained = frozen.get(name, self._is_trained(start))
            if parameter.requires_grad is not is_trained:
                parameter.requires_grad_(is_trained)
                parameter.grad = None

    def _is_trained(self, start: int) -> bool:
        return start <= self.progress.steps_taken

    def _trained(self) -> Iterator[tuple[str, Tensor, int]]:
        """Yield the parameters of the optimizers: name, tensor, and from which step on."""
        starts = {} if self.unfreezing is None else self.unfreezing.starts
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in self.built_trained:  # others may be of a strategy
                        name = self.built_names[id(parameter)]
                        yield name, parameter, starts.get(id(parameter), 0)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The only optimizer.

        Raises:
            TaskError: there are several.
        """
        if len(self.optimizers) > 1:
            raise TaskError(
                f"There is not one optimizer but several: {', '.join(self.optimizers)}. Take one "
                f"by its name: state.optimizers[{next(iter(self.optimizers))!r}]."
            )
        return next(iter(self.optimizers.values()))


def copied_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group; what an optimizer may change in place is copied."""
    return {name: _copied(value) for name, value in group.items() if name != "params"}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if isinstance(value, (list, dict, np.ndarray)) else value


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name; one that is shared is in it once.

    A model whose `parameters()` leaves some out, such as a teacher, does not train those.
    """
    offered = {id(parameter) for parameter in model.parameters()}
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) in offered
    }
