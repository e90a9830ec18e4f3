"""Which module runs, in the forward and in the backward, and at which line of the user's code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from surestep.engine.batch import flatten_tensors
from surestep.engine.diagnose.output_fingerprint import Outputs

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[2])


class CodeLocation(NamedTuple):
    """A place in the model: module, function, line of the user's code."""

    module: str | None
    called: str | None
    line: str | None
    backward: bool = False


class ModuleTracker(TorchFunctionMode):
    """Know the innermost module that runs; an operation of the backward is its forward's.

    Args:
        names: of the modules, by module; another one goes by its class.
        outputs: takes in what each module returned.
    """

    def __init__(self, names: dict[nn.Module, str], outputs: Outputs) -> None:
        super().__init__()
        self.names = names
        self.outputs = outputs
        self._running: list[tuple[str | None, Any]] = []
        self._called: str | None = None
        self._nodes: dict[Any, CodeLocation] = {}

    def current(self) -> CodeLocation:
        """Return the place of what runs in this moment."""
        node = torch._C._current_autograd_node()
        module, began = self._running[-1] if self._running else (None, None)
        # A module that began within this very node is computed again by checkpointing.
        if node is not None and node is not began:
            return self._nodes.get(node, CodeLocation(None, node.name(), None))._replace(
                backward=True
            )
        return CodeLocation(module, self._called, _line())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called, self._called = self._called, getattr(func, "__name__", None)
        try:
            made = func(*args, **(kwargs or {}))
        finally:
            self._called = called
        module = self._running[-1][0] if self._running else None
        at: CodeLocation | None = None
        nodes = [each.grad_fn for each in flatten_tensors(made)]
        while nodes:
            node = nodes.pop()
            if node is not None and node not in self._nodes:
                at = at or CodeLocation(module, getattr(func, "__name__", None), _line())
                self._nodes[node] = at
                nodes += [before for before, _ in node.next_functions]
        return made

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """Follow every module that is called within."""

        def enter(module: nn.Module, *_: Any) -> None:
            name = self.names.get(module)
            self._running.append((name, torch._C._current_autograd_node()))

        def leave(module: nn.Module, _: Any, made: Any) -> None:
            name, _ = self._running.pop()
            self.outputs.add(name, made)

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


def _line() -> str | None:
    """Return the line of the user's code that is nearest; None where there is none before ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, "<")):
            if file.startswith(_OURS) and "/recipes/" not in file:
                if "/engine/diagnose/" not in file:
                    return None
            else:
                return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None
