"""See some forward passes: hooks for all modules would slow down each of their calls."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from surestep.doctor import private
from surestep.doctor.runtime.batches import is_dense
from surestep.doctor.watch.listeners import Listeners
from surestep.doctor.watch.wrap import is_traced

_FIRST_STEPS = 20  # for each optimizer, in which each forward pass is seen
_MOST_OPTIMIZERS = 8  # of them: a script may make one in every step
_EVERY = 50  # later: one step of so many
_LATE, _EVERY_LATE = 1000, 200  # and fewer in a long run
_REST = 10  # steps before passes are seen again for a change of mode or a DataLoader
_PASSES = 5  # that are seen after a change of mode, or from the start of a DataLoader


class Forwards:
    """The hooks of forward passes, which are there for some passes only.

    Args:
        listeners: that hear of them.
    """

    def __init__(self, listeners: Listeners) -> None:
        self._listeners, self._run = listeners, listeners.run
        self._handles: list[Any] = []
        self._first_until, self._optimizers = _FIRST_STEPS, 0
        self._passes_left = 0
        self._begun_at = 0  # the step in which passes were last seen for another reason
        heard = ("on_forward", "after_forward", "on_model", "on_call")
        self._is_wanted = listeners.hear(*heard)

    def begin_step(self) -> None:
        """See the passes of a step if it is one of the first, or one of some later ones."""
        self._sample(self._run.step)
        if self._run.is_sampled:
            self._start()
        elif self._passes_left <= 0:
            self.stop()

    def begin_optimizer(self) -> None:
        """See the passes of the first steps of a new optimizer."""
        self._optimizers += 1
        if 1 < self._optimizers <= _MOST_OPTIMIZERS and not self._listeners.is_busy:
            self._first_until = max(self._first_until, self._run.step) + _FIRST_STEPS
            self._sample(self._run.step + 1)  # something of this step may be over
            self._start()

    def _sample(self, since: int) -> None:
        """Sample this step if it is due; it is whole only from the step `since`."""
        step, run = self._run.step, self._run
        every = _EVERY if step < _LATE else _EVERY_LATE
        is_due = step < self._first_until or step % every == 0
        if is_due and not run.is_sampled:
            run.sampled_since = since
        run.is_sampled = is_due

    def see_next(self) -> None:
        """See the next passes: the script begins something, such as an evaluation."""
        step = self._run.step
        is_due = step < self._first_until or step - self._begun_at >= _REST
        if is_due and not self._listeners.is_busy:
            self._begun_at, self._passes_left = step, _PASSES
            self._start()

    def give_up(self) -> None:
        """See no pass any more: torch would compile a module again for other hooks."""
        self._is_wanted = False
        self.stop()

    def stop(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._run.modules.clear()
        self._run.sees_forwards = False

    def _start(self) -> None:
        if not self._is_wanted:
            return
        self._run.sees_forwards = True
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, always_call=True),
            ]

    def _before(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if is_compiling():  # torch.compile traces this function
            return
        run, listeners = self._run, self._listeners
        try:
            if listeners.is_stopped or not run.sees_forwards:
                self.stop()
            elif not (listeners.is_busy or is_traced()):
                if not run.modules and not run.in_backward and module not in run.models:
                    run.models[module] = None
                    listeners.call("on_model", module)
                run.modules.append(module)
                listeners.call("on_forward", module, _hide_sparse(inputs))
        except Exception as error:
            listeners.guard.fail(error)

    def _after(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if is_compiling():
            return
        modules, listeners = self._run.modules, self._listeners
        try:
            if listeners.is_busy or is_traced() or not any(m is module for m in modules):
                return
            while modules[-1] is not module:  # passes that began before an error
                modules.pop()
            (*given, returned) = _hide_sparse((*inputs, output))
            listeners.call("after_forward", module, tuple(given), returned)
            modules.pop()
            if not modules and self._passes_left > 0:
                self._passes_left -= 1
                # The next pass removes the hooks: torch reads their dictionary after an error.
                self._run.sees_forwards = self._passes_left > 0 or self._run.is_sampled
        except Exception as error:
            listeners.guard.fail(error)


def _hide_sparse(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return values; None for tensors whose values no rule can read as those of dense ones."""
    with private.DisableTorchFunction():  # the modes of the script must not see it
        return tuple(
            value if not isinstance(value, Tensor) or is_dense(value) else None for value in values
        )
