"""The memory of a training step, followed from one allocation to the next.

A dispatch mode gets the tensors that each operation returns, and weak references to their storages
report when they are freed. So fake tensors, which have shapes and no memory, give the same numbers
as real ones.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from surestep.engine import private
from surestep.engine.batch import flatten_tensors
from surestep.engine.model.compile import DispatchMode

LOSS = "loss"  # the name of what no module computes, before the backward
_READ = torch.ops.aten._local_scalar_dense.default


@dataclass(eq=False, slots=True)
class Allocation:
    """A storage: its bytes, what it is for, and the module that computed it."""

    size: int
    kind: str
    module: str
    reference: Any = None


@dataclass(frozen=True)
class Moment:
    """What is in memory at one moment, in bytes.

    Attributes:
        total: all of it.
        kinds: by kind: "weights", "buffers", "inputs", "gradients", "optimizer", "average",
            "activations" or "temporaries".
        modules: the activations by the module that computed them.
    """

    total: int
    kinds: Counter[str]
    modules: Counter[str]


class StepTrace(DispatchMode):
    """Follows what is in the memory of a device while it is entered.

    Args:
        device: the type of the device whose memory counts.
        block: bytes to whose multiples the allocator rounds.
        names: of the modules whose activations are counted, by their ids.
        is_fake: tensors have no values. Then a read in the update is answered with 1: an optimizer
            reads its step count.

    Attributes:
        phase: "start", "forward" or "update".
    """

    def __init__(
        self, device: str, block: int, names: dict[int, str], root: nn.Module, *, is_fake: bool
    ) -> None:
        super().__init__()
        self.phase = "start"
        self._device, self._block, self._names, self._root = device, block, names, root
        self._is_fake = is_fake
        self._alive: dict[int, Allocation] = {}
        self._events: list[tuple[Allocation, bool, str]] = []
        self._first: list[Allocation] = []
        self._stack: list[str] = []

    def begin(self) -> None:
        """Forget what happened so far, and keep what is in memory."""
        self.phase = "start"
        self._events.clear()
        self._first = list(self._alive.values())

    def begin_update(self) -> None:
        """Note that the gradients are complete."""
        self.phase = "update"

    def add(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """Count tensors that are in memory as one kind, also before now."""
        for tensor in tensors:
            if tensor is not None and (known := self._note(tensor, kind)) is not None:
                known.kind = kind

    @contextmanager
    def follow_modules(self) -> Iterator[None]:
        """Note which module runs."""
        hooks = (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        if module is self._root:
            self.phase, self._stack = "forward", []
        name = self._names.get(id(module), self._stack[-1] if self._stack else LOSS)
        self._stack.append(name)

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        if self._stack:
            self._stack.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _READ and self._is_fake and self.phase == "update":
            return _one(args[0].dtype)
        result = func(*args, **(kwargs or {}))
        if type(result) in (list, tuple):
            for tensor in flatten_tensors(result):
                self._note(tensor)
        elif isinstance(result, Tensor):
            self._note(result)
        return result

    def _note(self, tensor: Tensor, kind: str = "") -> Allocation | None:
        """Return the storage of a tensor, which is new if it was not seen yet."""
        if tensor.device.type != self._device or tensor.layout is not torch.strided:
            return None
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is None:
            size = -(-storage.nbytes() // self._block) * self._block
            known = Allocation(size, *((kind, "") if kind else self._purpose()))
            known.reference = weakref.ref(storage, partial(self._free, key))
            self._alive[key] = known
            self._events.append((known, True, self.phase))
        return known

    def _free(self, key: int, _: Any) -> None:
        gone = self._alive.pop(key)
        self._events.append((gone, False, self.phase))

    def _purpose(self) -> tuple[str, str]:
        """Return what an allocation is for now, and which module asks for it."""
        if self._stack:
            return "activations", self._stack[-1]
        is_forward = private.current_autograd_node() is None and torch.is_grad_enabled()
        return (
            ("activations", LOSS) if is_forward and self.phase == "forward" else ("temporaries", "")
        )

    def find_peak(self, phases: tuple[str, ...] = ("start", "forward", "update")) -> Moment:
        """Return the moment with the most bytes, of these phases."""
        return self._at_most(phases, lambda _: True)

    def find_most_activations(self) -> Moment:
        """Return the moment with the most bytes of activations."""
        return self._at_most(("forward",), lambda entry: entry.kind == "activations")

    def _at_most(self, phases: tuple[str, ...], counts: Any) -> Moment:
        total = most = sum(entry.size for entry in self._first if counts(entry))
        best = 0
        for index, (entry, is_new, phase) in enumerate(self._events, 1):
            if counts(entry):
                total += entry.size if is_new else -entry.size
                if total > most and phase in phases:
                    most, best = total, index
        alive = dict.fromkeys(self._first)
        for entry, is_new, _ in self._events[:best]:
            if is_new:
                alive[entry] = None
            else:
                alive.pop(entry, None)
        kinds, modules = Counter[str](), Counter[str]()
        for entry in alive:
            kinds[entry.kind] += entry.size
            if entry.kind == "activations":
                modules[entry.module] += entry.size
        return Moment(kinds.total(), kinds, modules)


def _one(dtype: torch.dtype) -> float | int | bool:
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1
