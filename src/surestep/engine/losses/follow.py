"""A loss module with the options that the user's module has now.

surestep keeps its own copy of a loss: it sums, its tensors are on the device of the run, and it is
fitted to the data of one Task. The user's module is where options are changed during a run, such as
a smoothing that shrinks.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from surestep.engine.batch import flatten_tensors
from surestep.engine.losses.base import Loss

_NOT_SEEN = object()


class _Options:
    """Copies what the user set since the last call from `given` to `own`."""

    def __init__(self, given: nn.Module, own: nn.Module, fixed: tuple[str, ...]) -> None:
        self.given, self.own, self.fixed = given, own, fixed
        self.seen = dict(vars(given))
        self.tensors = {name: _version(tensor) for name, tensor in given._buffers.items()}
        self.built = dict(self.tensors)
        self.has_changed = False

    def is_changed(self) -> bool:
        """Return whether the user set something since the loss was built."""
        if not self.has_changed:
            self.update()
            now = {name: _version(tensor) for name, tensor in self.given._buffers.items()}
            self.has_changed = self.has_changed or now != self.built
        return self.has_changed

    def update(self, outputs: Any = None) -> None:
        """Copy them; tensors to the device of `outputs`, and not at all without outputs."""
        seen, own = self.seen, self.own.__dict__
        for name, value in self.given.__dict__.items():
            if value is not seen.get(name, _NOT_SEEN):
                seen[name] = value
                if name[0] != "_" and name not in self.fixed:
                    own[name] = value
                    self.has_changed = True
        for name, tensor in self.given._buffers.items() if outputs is not None else ():
            version = _version(tensor)
            if version != self.tensors.get(name):
                self.tensors[name] = version
                self.own._buffers[name] = None if tensor is None else _on(tensor, outputs)


def _version(tensor: Tensor | None) -> tuple[int, int] | None:
    """Return what changes if a tensor is replaced or written to; reads no device."""
    if tensor is None:
        return None
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _on(tensor: Tensor, outputs: Any) -> Tensor:
    there = flatten_tensors(outputs)
    return tensor.to(there[0].device, non_blocking=True) if there else tensor


def follow_options(
    loss: Loss, given: nn.Module, own: nn.Module, fixed: tuple[str, ...] = ()
) -> Loss:
    """Return a loss that has at each call the options of `given`, without those in `fixed`."""
    options = _Options(given, own, fixed)

    def current(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def value(outputs: Any, targets: Any) -> Any:
            options.update(outputs)
            return function(outputs, targets)

        return value

    def items(batch: Any, targets: Any) -> float:
        options.update()
        return loss.items(batch, targets)

    in_fp32 = None if loss.in_fp32 is None else current(loss.in_fp32)
    return replace(
        loss,
        value=current(loss.value),
        items=items,
        in_fp32=in_fp32,
        is_changed=options.is_changed,
    )
