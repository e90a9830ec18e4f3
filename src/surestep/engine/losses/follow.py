"""The options that the user's loss module has now.

surestep keeps its own copy of a loss: it sums, its tensors are on the device of the run, and it is
fitted to the data of one Task. The user's module is where options are changed during a run, such as
a smoothing that shrinks.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.device import place

get_version = attrgetter("_version")


class LossOptions:
    """Copies what the user sets in `given` to `own`.

    A step must not call functions to find that nothing has changed, so the loader itself compares
    `seen` with the ids of `given.__dict__`, then of its buffers, and the versions of `tensors`.

    Attributes:
        given: the user's module.
        tensors: its buffers whose versions are compared.
        seen: ids and versions at the last call of `update`.
    """

    def __init__(
        self,
        given: nn.Module,
        own: nn.Module,
        fixed: tuple[str, ...] = (),
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.given, self.own, self.fixed, self.on_change = given, own, fixed, on_change
        self._note()

    def _note(self) -> None:
        given = self.given
        self._values, self._buffers = dict(given.__dict__), dict(given._buffers)
        there = [tensor for tensor in given._buffers.values() if tensor is not None]
        self.tensors = [tensor for tensor in there if not tensor.is_inference()]
        self._versions = {id(tensor): tensor._version for tensor in self.tensors}
        self.seen = self._current()

    def _current(self) -> list[int]:
        given = self.given
        ids = [*map(id, given.__dict__.values()), *map(id, given._buffers.values())]
        return [*ids, *map(get_version, self.tensors)]

    def is_changed(self) -> bool:
        """Return whether the user set something since the last call of `update`."""
        return self.seen != self._current()

    def update(self, device: torch.device) -> None:
        """Copy what the user set since the last call; tensors to `device`."""
        own, none = self.own, object()
        for name, value in self.given.__dict__.items():
            is_new = value is not self._values.get(name, none)
            if is_new and not name.startswith("_") and name not in self.fixed:
                own.__dict__[name] = value
        for name, tensor in self.given._buffers.items():
            if tensor is not self._buffers.get(name, none) or self._is_written(tensor):
                own._buffers[name] = None if tensor is None else place(tensor, device)
        self._note()
        if self.on_change is not None:
            self.on_change()

    def _is_written(self, tensor: Any) -> bool:
        before = self._versions.get(id(tensor))
        return isinstance(tensor, Tensor) and before is not None and before != tensor._version
