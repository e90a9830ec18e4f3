"""Which module runs, forward and backward, at which line of your code, and what it returned."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from surestep.base.user_code import is_recipe_file, is_surestep_file, is_torch_file
from surestep.engine import private
from surestep.engine.batch import flatten_tensors

_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


class CodeLocation(NamedTuple):
    """A place in the model: module, called function, line of your code."""

    module: str | None
    called: str | None
    line: str | None
    backward: bool = False


class OutputFingerprint:
    """A hash of the finite values that modules return; reads the device each time.

    If the loss and all gradients are NaN, only this distinguishes one step from another.
    """

    def __init__(self) -> None:
        self._hash = sha256()
        self._finite = 0

    def add(self, module: str | None, output: object) -> None:
        """Add the output of a module; tensor subclasses are left out.

        The bits are summed as integers: the sum is the same in every memory format.
        """
        for tensor in flatten_tensors(output):
            floats = tensor.is_floating_point() or tensor.is_complex()
            if not floats or type(tensor) is not Tensor or tensor.layout != torch.strided:
                continue
            values = tensor.detach()
            numbers = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
            finite = torch.isfinite(numbers)
            numbers = torch.where(finite, numbers, torch.zeros_like(numbers))
            bits = int(numbers.view(_INTEGER[numbers.element_size()]).sum(dtype=torch.int64))
            count = int(finite.sum())
            self._finite += count
            entry = (module, str(tensor.dtype), tuple(tensor.shape), count, bits)
            self._hash.update(repr(entry).encode())

    @property
    def value(self) -> str | None:
        """The hash; None if nothing was finite."""
        return self._hash.hexdigest() if self._finite else None


class ModuleTracker(TorchFunctionMode):
    """Knows the innermost module that runs; an operation of the backward belongs to its forward.

    Args:
        names: the model's modules and their names.
        outputs: gets the output of each module.
    """

    def __init__(self, names: dict[nn.Module, str], outputs: OutputFingerprint) -> None:
        super().__init__()
        self.names = names
        self.outputs = outputs
        self._running: list[tuple[str | None, Any]] = []
        self._called: str | None = None
        self._nodes: dict[Any, CodeLocation] = {}

    def current(self) -> CodeLocation:
        """Return the location of the operation that runs now."""
        node = private.current_autograd_node()
        module, began = self._running[-1] if self._running else (None, None)
        # A module that began within this very node is recomputed by activation checkpointing.
        if node is not None and node is not began:
            at = self._nodes.get(node, CodeLocation(None, node.name(), None))
            return at._replace(backward=True)
        return CodeLocation(module, self._called, _user_line())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", None)
        outer, self._called = self._called, name
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self._called = outer
        module = self._running[-1][0] if self._running else None
        at: CodeLocation | None = None
        nodes = [tensor.grad_fn for tensor in flatten_tensors(result)]
        while nodes:
            node = nodes.pop()
            if node is not None and node not in self._nodes:
                at = at or CodeLocation(module, name, _user_line())
                self._nodes[node] = at
                nodes += [before for before, _ in node.next_functions]
        return result

    @contextmanager
    def track(self) -> Iterator[None]:
        """Follow every module that is called within the block."""

        def enter(module: nn.Module, *_: Any) -> None:
            self._running.append((self.names.get(module), private.current_autograd_node()))

        def leave(module: nn.Module, _: Any, output: Any) -> None:
            name, _ = self._running.pop()
            self.outputs.add(name, output)

        hooks = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            with self:
                yield
        finally:
            for hook in hooks:
                hook.remove()


def _user_line() -> str | None:
    """Return the nearest line outside torch; None if surestep itself made the call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (is_torch_file(file) or file.startswith("<")):
            if not is_surestep_file(file) or is_recipe_file(file):
                return f"{Path(file).name}:{frame.f_lineno}"
            if "/engine/diagnose/" not in file:
                return None
        frame = frame.f_back
    return None
