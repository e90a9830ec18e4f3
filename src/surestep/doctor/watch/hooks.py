"""Call the rules while a script trains: torch's own hooks, and functions wrapped for the time.

Everything is restored at the end. An exception in a rule disables that rule, and is reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from surestep.doctor.watch.location import find_location
from surestep.doctor.watch.names import find_name
from surestep.doctor.watcher import Run, Watcher

FIRST_STEPS = 20  # in which each forward of a module is seen
EVERY = 50  # later: one step of so many
_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"),
)


class Monitor:
    """Passes what a script does to the rules.

    Args:
        watchers: of the rules, by code.
        most_steps: that are watched; None for all.

    Attributes:
        run: what all rules know.
        failures: why a rule was disabled, by its code.
    """

    def __init__(self, watchers: dict[str, Watcher], most_steps: int | None = None) -> None:
        self.run = Run(find_location, find_name)
        self._most_steps = most_steps
        self.failures: dict[str, str] = {}
        self._watchers = dict(watchers)
        self._is_busy = False
        self._forward: Any = None
        # Only the rules that have a method pay for its calls.
        self._listeners = {
            name: [code for code, watcher in watchers.items() if _overrides(watcher, name)]
            for name in vars(Watcher)
            if name.startswith(("on_", "after_"))
        }

    def call(self, method: str, *args: Any) -> None:
        """Call a method of all rules that have it."""
        if self._is_busy:  # a hook that is called by a rule or by another hook, or all is done
            return
        self._is_busy = True
        try:
            for code in tuple(self._listeners[method]):
                try:
                    getattr(self._watchers[code], method)(self.run, *args)
                except Exception as error:  # of the rule, which must not stop the script
                    self.disable(code, error)
        finally:
            self._is_busy = False

    def disable(self, code: str, error: Exception) -> None:
        """Call a rule no more."""
        self.failures[code] = f"{type(error).__name__}: {error}"
        for codes in self._listeners.values():
            if code in codes:
                codes.remove(code)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Hook torch while the body runs."""
        with ExitStack() as stack:
            stack.callback(self._stop_forwards)
            for handle in (
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ):
                stack.callback(handle.remove)
            for owner, name, wrap in self._wrappers():
                stack.enter_context(_wrapped(owner, name, wrap))
            self._start_forwards()
            yield

    def _wrappers(self) -> Iterable[tuple[Any, str, Callable[[Any], Any]]]:
        yield Tensor, "backward", self._wrap_backward
        yield Optimizer, "zero_grad", self._wrap_optimizer_zero
        yield nn.Module, "zero_grad", self._wrap_module_zero
        yield nn.utils, "clip_grad_norm_", self._wrap_clip
        yield nn.utils.clip_grad, "clip_grad_norm_", self._wrap_clip
        yield torch.amp.GradScaler, "scale", self._wrap_scale
        yield torch.amp.GradScaler, "unscale_", self._wrap_unscale
        if self._listeners["on_loss"]:
            for name in _LOSSES:
                yield nn.functional, name, functools.partial(self._wrap_loss, name)

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        self.call("on_step", optimizer)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        self.run.step += 1
        self.call("after_step", optimizer)
        step = self.run.step
        if step == self._most_steps:
            self._is_busy = True  # nothing more is called
            self._stop_forwards()
        elif step < FIRST_STEPS or step % EVERY == 0:
            self._start_forwards()
        else:
            self._stop_forwards()

    def _start_forwards(self) -> None:
        if self._forward is None and self._listeners["on_forward"]:
            self._forward = register_module_forward_pre_hook(self._before_forward)

    def _stop_forwards(self) -> None:
        if self._forward is not None:
            self._forward.remove()
            self._forward = None

    def _before_forward(self, module: nn.Module, _: object) -> None:
        self.call("on_forward", module)

    def _wrap_backward(self, original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensor: Tensor, *args: Any, **options: Any) -> Any:
            self.run.backwards += 1
            self.call("on_backward", tensor)
            return original(tensor, *args, **options)

        return backward

    def _wrap_optimizer_zero(self, original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(optimizer: Optimizer, *args: Any, **options: Any) -> Any:
            self.call("on_zero_grad", parameters_of(optimizer))
            return original(optimizer, *args, **options)

        return zero_grad

    def _wrap_module_zero(self, original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(module: nn.Module, *args: Any, **options: Any) -> Any:
            self.call("on_zero_grad", list(module.parameters()))
            return original(module, *args, **options)

        return zero_grad

    def _wrap_clip(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, max_norm: float, *args: Any, **options: Any) -> Any:
            listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            norm = original(listed, max_norm, *args, **options)
            self.call("on_clip", listed, float(max_norm), norm)
            return norm

        return clip

    def _wrap_scale(self, original: Any) -> Any:
        @functools.wraps(original)
        def scale(scaler: Any, *args: Any, **options: Any) -> Any:
            if scaler.is_enabled():
                self.call("on_scale")
            return original(scaler, *args, **options)

        return scale

    def _wrap_unscale(self, original: Any) -> Any:
        @functools.wraps(original)
        def unscale(scaler: Any, optimizer: Optimizer) -> Any:
            if scaler.is_enabled():
                self.call("on_unscale", optimizer)
            return original(scaler, optimizer)

        return unscale

    def _wrap_loss(self, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def loss(input: Tensor, target: Tensor, *args: Any, **options: Any) -> Any:
            self.call("on_loss", name, input, target)
            return original(input, target, *args, **options)

        return loss


def parameters_of(optimizer: Optimizer) -> Sequence[Tensor]:
    """Return the parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _overrides(watcher: Watcher, name: str) -> bool:
    return getattr(type(watcher), name) is not getattr(Watcher, name)


@contextmanager
def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
