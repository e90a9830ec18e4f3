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
from surestep.engine.profile.workspace import (
    WITH_WORKSPACE,
    Call,
    describe_call,
    measure_workspace,
)

LOSS = "loss"  # the name of what no module computes, before the backward


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
            "activations", "temporaries", "copies" or "workspace".
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
        measures_workspace: operations that are known to have one run again on the CPU, with zeros.

    Attributes:
        phase: "start", "forward", "backward" or "update".
    """

    def __init__(
        self,
        device: str,
        block: int,
        names: dict[int, str],
        root: nn.Module,
        *,
        is_fake: bool,
        measures_workspace: bool,
    ) -> None:
        super().__init__()
        self.phase = "start"
        self._device, self._block, self._names, self._root = device, block, names, root
        self._is_fake = is_fake
        self._measures_workspace = measures_workspace
        self._workspaces: list[tuple[Allocation, Call]] = []
        self._alive: dict[int, Allocation] = {}
        self._ends: list[int] = []  # of forwards, by how many events were before
        self._events: list[tuple[Allocation, bool, str]] = []
        self._first: list[Allocation] = []
        self._stack: list[str] = []

    def begin(self) -> None:
        """Forget what happened so far, and keep what is in memory."""
        self.phase = "start"
        self._events.clear()
        self._ends.clear()
        self._workspaces.clear()
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
        if func is private.read_value and self._is_fake and self.phase == "update":
            return _one(args[0].dtype)
        if self.phase == "forward" and private.current_autograd_node() is not None:
            self.phase = "backward"
            self._ends.append(len(self._events))
        result = func(*args, **(kwargs or {}))
        if func is private.cast_tensor and self._is_weight(args[0]):
            self._note(result, "copies")
        elif type(result) in (list, tuple):
            for tensor in flatten_tensors(result):
                self._note(tensor)
        elif isinstance(result, Tensor):
            self._note(result)
        if self._measures_workspace and str(func) in WITH_WORKSPACE:
            inside = Allocation(0, "workspace", "")  # its size is measured later
            self._workspaces.append((inside, describe_call(func, args)))
            self._events += [(inside, True, self.phase), (inside, False, self.phase)]
        return result

    def _is_weight(self, tensor: Tensor) -> bool:
        known = self._alive.get(tensor.untyped_storage()._cdata)
        return known is not None and known.kind == "weights"

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
        is_forward = self.phase == "forward" and torch.is_grad_enabled()
        return ("activations", LOSS) if is_forward else ("temporaries", "")

    def measure_workspaces(self) -> None:
        """Measure what operations allocated inside, when the trace has ended."""
        for inside, call in self._workspaces:
            inside.size = measure_workspace(call)

    def find_peak(self, *phases: str) -> Moment:
        """Return the moment with the most bytes, of these phases or of all."""
        total = most = sum(entry.size for entry in self._first)
        best = 0
        for index, (entry, is_new, phase) in enumerate(self._events, 1):
            total += entry.size if is_new else -entry.size
            if total > most and (phase in phases or not phases):
                most, best = total, index
        return self._moment_after(best)

    def find_most_activations(self) -> Moment:
        """Return the end of the forward that keeps the most activations for its backward."""
        ends = map(self._moment_after, self._ends or [len(self._events)])
        return max(ends, key=lambda moment: moment.kinds["activations"])

    def _moment_after(self, events: int) -> Moment:
        alive = dict.fromkeys(self._first)
        for entry, is_new, _ in self._events[:events]:
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
