"""Several optimizers in one manual step, which is applied completely or not at all."""

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.warn import warn
from surestep.engine.losses.base import at_least_fp32
from surestep.engine.optim.param_groups import wrapped_optimizers
from surestep.engine.parallel.base import Strategy
from surestep.engine.parallel.guards import DeviceGuard, all_finite
from surestep.engine.schedule.groups import GroupSchedule
from surestep.engine.state.state import copied_options
from surestep.engine.step_outcome import StepOutcome


class StepRolledBack(BaseException):
    """Ends a manual step that is undone; no `except Exception` of the user's step catches it."""

    def __init__(self, outcome: StepOutcome) -> None:
        super().__init__("the manual step is skipped")
        self.outcome = outcome


class WeightSnapshot:
    """A copy of parameters."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._copies = [(parameter, parameter.detach().clone()) for parameter in parameters]

    @torch.no_grad()
    def restore(self, bad: Tensor | None = None) -> None:
        """Restore the copy; on the device if `bad` is true, () bool."""
        for parameter, saved in self._copies:
            if bad is None:
                parameter.copy_(saved)
            else:
                torch.where(bad, saved, parameter, out=parameter)


def find_followers(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> list[Tensor]:
    """Return the parameters without an optimizer, which a step may set, as a target network's.

    They follow others. If there are more of them than the optimizers train, they are a frozen base,
    of which a copy may be too large.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    trained = {
        id(parameter): parameter.numel() for group in groups for parameter in group["params"]
    }
    others = [parameter for parameter in model.parameters() if id(parameter) not in trained]
    total = sum(parameter.numel() for parameter in others)
    return list(others) if total <= sum(trained.values()) else []


class OptimizerSnapshot:
    """A copy of what an optimizer updates: its parameters, its state and its options.

    If it wraps other optimizers, their state is copied too.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self._parts = (optimizer, *wrapped_optimizers(optimizer).values())

    def save(self, copy_value: Callable[[Any], Any] = copy.deepcopy) -> None:
        """Make the copy; `copy_value` copies what is in the state and is not a tensor."""
        groups = self.optimizer.param_groups
        self.weights = WeightSnapshot([p for group in groups for p in group["params"]])
        self._states: list[tuple[Any, Any]] = [
            (
                part.state,
                {
                    parameter: {
                        slot: value.clone() if isinstance(value, Tensor) else copy_value(value)
                        for slot, value in slots.items()
                    }
                    for parameter, slots in part.state.items()
                },
            )
            for part in self._parts
        ]
        self.save_options()

    def save_options(self) -> None:
        """Copy the options."""
        self._options = [copied_options(group) for group in self.optimizer.param_groups]

    @property
    def has_new_state(self) -> bool:
        """Whether the optimizer has created state since the copy was made."""
        return any(
            slots.keys() != saved.get(parameter, {}).keys()
            for now, saved in self._states
            for parameter, slots in now.items()
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the copy, once."""
        self.weights.restore()
        for now, saved in self._states:
            now.clear()
            now.update(saved)
        for group, options in zip(self.optimizer.param_groups, self._options, strict=True):
            group.update(options)

    @torch.no_grad()
    def restore_where(self, bad: Tensor, *, with_state: bool) -> None:
        """Restore the copy of the weights, and the state, on the device if `bad` is true, () bool.

        The weights are always restored: the user's code may have written them, and a write through
        `.data` changes no version by which it could be seen.
        """
        self.weights.restore(bad)
        for now, saved in self._states if with_state else ():
            for parameter, slots in saved.items():
                for slot, value in slots.items():
                    if isinstance(value, Tensor):
                        current = now[parameter][slot]
                        torch.where(bad, value, current, out=current)


def saved_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerSnapshot:
    """Return a copy of what an optimizer updates, as it is now."""
    snapshot = OptimizerSnapshot(optimizer)
    snapshot.save()
    return snapshot


@dataclass
class OptimizerHandle:
    """An optimizer with its strategy, its schedule and a snapshot."""

    strategy: Strategy
    schedule: GroupSchedule
    snapshot: OptimizerSnapshot


class OptimizerSet:
    """The optimizers of a manual step: a value that is not finite in one of them skips all.

    If the host checks, the step ends at once and the snapshots are restored. If the device checks,
    all optimizers share one flag, and it decides whether the snapshots are restored.
    """

    STEPS_UNTIL_WARNING = 100

    def __init__(self, by_name: Mapping[str, OptimizerHandle], model: nn.Module) -> None:
        self.by_name = by_name
        self.model = model
        self.manual_steps = 0
        self.never_stepped = set(by_name)
        self._first = next(iter(by_name.values())).strategy  # its guard has the flag of all
        self.scaler = self._first.scaler

    def begin(self) -> None:
        """Begin a manual step."""
        self._saved: list[OptimizerHandle] = []
        self._updates: list[OptimizerHandle] = []  # in order
        optimizers = [handle.snapshot.optimizer for handle in self.by_name.values()]
        self._followers = WeightSnapshot(find_followers(self.model, optimizers))
        self._graph_grads: list[Tensor] = []
        self._scale = self.scaler.state_dict()

    def add_gradient(
        self, loss: Tensor, seed: Tensor, names: Sequence[str], **options: Any
    ) -> None:
        """Add the gradient of `loss`, from `seed`, to the parameters of these optimizers only."""
        inputs = [
            parameter
            for name in names
            for parameter in self.by_name[name].strategy.parameters
            if parameter.requires_grad
        ]
        with warnings.catch_warnings():
            # torch warns of a cycle through `.grad`, which the next pass breaks.
            warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
            torch.autograd.backward(loss, self.scaler.scale(seed), inputs=inputs, **options)

    def grad(self, outputs: Tensor, inputs: Sequence[Tensor], **graph: bool) -> tuple[Tensor, ...]:
        """Return the gradients of the sum of `outputs`, unscaled."""
        seed = self.scaler.scale(torch.ones_like(outputs))
        grads = torch.autograd.grad(outputs, inputs, seed, **graph)
        if not self.scaler.is_enabled():
            return grads
        scale = self.scaler.scale(torch.ones((), device=outputs.device))
        unscaled = tuple(at_least_fp32(grad) / scale for grad in grads)
        self._graph_grads += [entry.detach() for entry in unscaled]
        return unscaled

    def set_rate(self, name: str, steps_taken: int) -> float:
        """Set the learning rates of an optimizer; return that of its first group."""
        schedule = self.by_name[name].schedule
        schedule.write(steps_taken)
        return schedule.groups[0].written

    def save(self, name: str) -> None:
        """Copy what the step changes of an optimizer, once, before the user's code changes it."""
        handle = self.by_name[name]
        if handle not in self._saved:
            handle.snapshot.save()
            self._saved.append(handle)

    def step(self, name: str, loss: Tensor, grad_norm: Tensor, *, pending: bool) -> None:
        """Update the parameters of one optimizer.

        The loss scale changes when no gradients with the old one are `pending`.

        Raises:
            StepRolledBack: a value is not finite, and the host knows.
        """
        handle = self.by_name[name]
        self.save(name)
        if handle not in self._updates:  # its schedule has just set the learning rate
            handle.snapshot.save_options()
        self._updates.append(handle)
        self.never_stepped.discard(name)
        guard, first = handle.strategy.guard, self._first.guard
        if isinstance(guard, DeviceGuard):
            assert isinstance(first, DeviceGuard)
            guard.nonfinite = first.nonfinite
            guard.step(loss, grad_norm)
            first.nonfinite = guard.nonfinite
            return
        loss = self._without_overflow(loss)
        outcome = guard.step(loss, grad_norm, updates_scale=not pending)
        if not outcome.took_step:
            raise StepRolledBack(outcome)

    def end(self, outcome: StepOutcome | None = None) -> StepOutcome:
        """End a manual step, and undo it if it is skipped; `outcome` is why it was rolled back."""
        if outcome is not None:
            self._restore()
            if outcome.nonfinite:
                self.scaler.load_state_dict(self._scale)
            return outcome
        self._warn_of_unused()
        guard = self._first.guard
        if not isinstance(guard, DeviceGuard):
            return StepOutcome(True)
        flag = guard.nonfinite
        if any(handle.snapshot.has_new_state for handle in self._saved):
            if not all_finite(flag):
                self._restore()
            return StepOutcome(True, flag)
        for handle in self._saved:
            # The last update knew the final flag, so its kernel has left the state alone.
            updated_before = handle in self._updates[:-1]
            handle.snapshot.restore_where(flag != 0, with_state=updated_before)
        self._followers.restore(flag != 0)
        return StepOutcome(True, flag)

    def _restore(self) -> None:
        for handle in self._saved:
            handle.snapshot.restore()
        self._followers.restore()

    def _without_overflow(self, loss: Tensor) -> Tensor:
        """Return the loss; 0 if it is not finite because gradients within it overflowed."""
        if not self._graph_grads or all_finite(loss):
            return loss
        overflowed = not all_finite(*(grad.sum() for grad in self._graph_grads))
        return (
            torch.zeros_like(loss) if any(self._first.world.all_reduce_sum([overflowed])) else loss
        )

    def _warn_of_unused(self) -> None:
        """Warn once of an optimizer that is never stepped."""
        self.manual_steps += 1
        if self.manual_steps == self.STEPS_UNTIL_WARNING and self.never_stepped:
            names = ", ".join(sorted(self.never_stepped))
            warn(
                f"In {self.manual_steps} steps the Task's step function never called "
                "manual_step.step() "
                f"for: {names}. Its parameters are not trained."
            )
