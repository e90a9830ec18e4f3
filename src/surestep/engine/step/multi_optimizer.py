"""Several optimizers in one turn, which together move or do not."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surestep.base.warn import warn
from surestep.engine.parallel.nonfinite_guard import GradScalerGuard, all_finite
from surestep.engine.parallel.single import DeviceGuard, SingleProcessStrategy
from surestep.engine.schedule.registry import Factor
from surestep.engine.state.state import copied_options
from surestep.engine.step_outcome import StepOutcome


class StepRolledBack(BaseException):
    """A turn that is given up; no `except Exception` of the user's step may keep it."""

    def __init__(self, outcome: StepOutcome) -> None:
        super().__init__("the turn is skipped")
        self.outcome = outcome


class OptimizerSnapshot:
    """A copy of what an optimizer moves: its parameters and its state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def keep(self) -> None:
        """Keep a copy."""
        groups = self.optimizer.param_groups
        self._parameters = [
            (each, each.detach().clone()) for group in groups for each in group["params"]
        ]
        self._state = {
            parameter: {
                slot: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
                for slot, value in slots.items()
            }
            for parameter, slots in self.optimizer.state.items()
        }
        self._options = [copied_options(group) for group in groups]

    @property
    def has_new_state(self) -> bool:
        """Whether there is state now that was not there."""
        now = self.optimizer.state
        return any(
            slots.keys() != self._state.get(parameter, {}).keys()
            for parameter, slots in now.items()
        )

    @torch.no_grad()
    def restore(self) -> None:
        """Put the copy back."""
        for parameter, kept in self._parameters:
            parameter.copy_(kept)
        state = self.optimizer.state
        for parameter in list(state):
            slots, kept_slots = state[parameter], self._state.get(parameter, {})
            for slot in list(slots):
                if slot not in kept_slots:
                    del slots[slot]
                elif isinstance(slots[slot], Tensor):
                    slots[slot].copy_(kept_slots[slot])
                else:
                    slots[slot] = kept_slots[slot]
            if not slots:
                del state[parameter]
        for group, options in zip(self.optimizer.param_groups, self._options, strict=True):
            group.update(options)

    @torch.no_grad()
    def restore_where(self, bad: Tensor) -> None:
        """Put the copy back where `bad` is true, () bool, which only the device knows."""
        for parameter, kept in self._parameters:
            parameter.copy_(torch.where(bad, kept, parameter))
        for parameter, slots in self._state.items():
            now = self.optimizer.state[parameter]
            for slot, kept in slots.items():
                if isinstance(kept, Tensor):
                    now[slot].copy_(torch.where(bad, kept, now[slot]))


@dataclass
class OptimizerHandle:
    """An optimizer with its verbs, its rates, and a copy to go back to."""

    parallel: SingleProcessStrategy
    rate: Factor
    peak_rates: list[float]
    kept: OptimizerSnapshot
    momentum: Callable[[int], None] | None = None


class OptimizerSet:
    """The optimizers of a turn: a value that is not finite in one of them skips all.

    Where the host decides, the turn is given up at once and the copies are put back. Where the
    device does (see `single.Sticky`), all share its poison, and the copies are put back by it.
    """

    TURNS_TO_BE_STEPPED = 100

    def __init__(
        self, by_name: Mapping[str, OptimizerHandle], scaler: torch.amp.GradScaler
    ) -> None:
        self.by_name = by_name
        self.scaler = scaler
        self.manual_steps = 0
        self.never_stepped = set(by_name)
        self._moved: list[OptimizerHandle] = []
        self._graph_grads: list[Tensor] = []
        self._scale: dict[str, Any] = {}
        self._steps = 0

    def begin(self) -> None:
        """Start a turn."""
        self._moved, self._graph_grads, self._steps = [], [], 0
        self._scale = self.scaler.state_dict()

    def add_gradient(
        self,
        loss: Tensor,
        seed: Tensor,
        names: Sequence[str],
        *,
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        """Add the gradient of `loss`, from `seed`, to the parameters of these optimizers alone."""
        inputs = [
            parameter
            for name in names
            for parameter in self.by_name[name].parallel.parameters
            if parameter.requires_grad
        ]
        with warnings.catch_warnings():
            # torch warns of a cycle through `.grad`, which the next walk takes apart.
            warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
            torch.autograd.backward(
                loss,
                self.scaler.scale(seed),
                retain_graph=retain_graph or create_graph,
                create_graph=create_graph,
                inputs=inputs,
            )

    def grad(self, outputs: Tensor, inputs: Sequence[Tensor], **graph: bool) -> tuple[Tensor, ...]:
        """Return the gradients of the sum of `outputs`, unscaled."""
        seed = self.scaler.scale(torch.ones_like(outputs))
        found = torch.autograd.grad(outputs, inputs, seed, **graph)
        if not self.scaler.is_enabled():
            return found
        scale = self.scaler.scale(torch.ones((), device=outputs.device))
        unscaled = tuple(each.float() / scale for each in found)
        self._graph_grads += [each.detach() for each in unscaled]
        return unscaled

    def set_rate(self, name: str, turns_taken: int) -> float:
        """Set the rates of an optimizer for a turn; return that of its first group."""
        mover = self.by_name[name]
        rate = mover.rate(turns_taken)
        for group, peak in zip(
            mover.parallel.optimizer.param_groups, mover.peak_rates, strict=True
        ):
            group["lr"] = peak * rate
        if mover.momentum is not None:
            mover.momentum(turns_taken)
        return mover.peak_rates[0] * rate

    def step(self, name: str, loss: Tensor, grad_norm: Tensor, *, pending: bool) -> None:
        """Move the parameters of one optimizer.

        The loss scale follows when no gradients under the old one are `pending`.

        Raises:
            Abandoned: something is not finite, and the host knows.
        """
        mover = self.by_name[name]
        if mover not in self._moved:
            mover.kept.keep()
            self._moved.append(mover)
        self._steps += 1
        guard = mover.parallel.guard
        self.never_stepped.discard(name)
        if isinstance(guard, DeviceGuard):
            shared = self._first_guard()
            assert isinstance(shared, DeviceGuard)
            guard.nonfinite = shared.nonfinite
            guard.step(loss, grad_norm)
            shared.nonfinite = guard.nonfinite
            return
        if isinstance(guard, GradScalerGuard):
            outcome = guard.step_only(self._judged(loss), grad_norm)
            if outcome.took_step and not pending:
                self.scaler.update()
        else:
            outcome = guard.step(loss, grad_norm)
        if not outcome.took_step:
            raise StepRolledBack(outcome)

    def end(self, outcome: StepOutcome | None = None) -> StepOutcome:
        """End a turn, and undo it where it does not count; `outcome` is why it was given up."""
        if outcome is not None:
            for mover in self._moved:
                mover.kept.restore()
            if outcome.nonfinite:
                self.scaler.load_state_dict(self._scale)
            return outcome
        self._look_for_the_idle()
        guard = self._first_guard()
        if not isinstance(guard, DeviceGuard):
            return StepOutcome(True)
        self._restore_by(guard.nonfinite)
        return StepOutcome(True, guard.nonfinite)

    def _first_guard(self) -> Any:
        """Return the guard that keeps the poison of all, which `recover()` of the Loop clears."""
        return next(iter(self.by_name.values())).parallel.guard

    def _restore_by(self, poison: Tensor) -> None:
        """Undo on the device; by a read where an optimizer has just made its state."""
        if any(mover.kept.has_new_state for mover in self._moved):
            if not all_finite(poison):
                for mover in self._moved:
                    mover.kept.restore()
            return
        if self._steps > 1:  # else the poison came before anything moved
            bad = poison != 0
            for mover in self._moved:
                mover.kept.restore_where(bad)

    def _judged(self, loss: Tensor) -> Tensor:
        """Return the loss; 0 where gradients within it overflowed, which is not its failure."""
        if not self._graph_grads or all_finite(loss):
            return loss
        is_broken = not all_finite(*(each.sum() for each in self._graph_grads))
        world = next(iter(self.by_name.values())).parallel.world
        return torch.zeros_like(loss) if any(world.all_reduce_max([is_broken])) else loss

    def _look_for_the_idle(self) -> None:
        """Warn of an optimizer that is never stepped, once."""
        self.manual_steps += 1
        if self.manual_steps == self.TURNS_TO_BE_STEPPED and self.never_stepped:
            names = ", ".join(sorted(self.never_stepped))
            warn(
                f"In {self.manual_steps} turns the Task's step never called turn.step() for: "
                f"{names}. "
                "Its parameters do not move.",
            )
