"""A module keeps random values in a plain tensor, which `state_dict()` does not have.

Only parameters and buffers are saved, and moved by `to(device)`. A plain tensor with random values
gets other values when the model is created again, so a loaded checkpoint computes something else
than the trained model. Nothing fails on the CPU; on other devices the first forward pass does.

Ignore it if the values are set again before each use.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer

Wrong:

    import torch
    from torch import nn


    class RandomFeatures(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = torch.randn(4, width)
            self.head = nn.Linear(width, 1)

        def forward(self, x):
            return self.head(torch.cos(x @ self.weight))


    print(RandomFeatures(8)(torch.randn(3, 4)))

Right:

    import torch
    from torch import nn


    class RandomFeatures(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.register_buffer("weight", torch.randn(4, width))

        def forward(self, x):
            return torch.cos(x @ self.weight)


    print(RandomFeatures(8)(torch.randn(3, 4)))
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.tensors import read_part
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.values import Call, Instance, Operation, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "warning"
FIX = "Use self.register_buffer(name, tensor)."
_MOST_MODULES = 1000
_VALUES = 64  # of a tensor that are compared

_RANDOM = frozenset(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm"))
_KEEPING = frozenset("float double half to cuda view reshape t transpose sign mul div".split())


def check(program: Program) -> Iterator[Problem]:
    """Find random tensors that a module keeps as attributes and uses in its forward."""
    for event in program.events:
        target, owner = event.target, event.base
        if event.kind != "store" or not isinstance(target, ast.Attribute):
            continue
        if not isinstance(owner, Instance) or not owner.cls.is_module or not _is_in_init(event):
            continue
        if not _is_random(event.value) or not _is_read_only(owner, target.attr):
            continue
        yield at_event(
            event,
            f"`{ast.unparse(target)}` is random, and is neither saved nor moved with the module.",
        )


def _is_in_init(event: Event) -> bool:
    return bool(event.stack) and event.stack[-1].name == "__init__"


def _is_random(value: Value) -> bool:
    """Return whether a value is a tensor of random numbers that have no generator."""
    if isinstance(value, Operation) and len(value.operands) == 2:
        return any(map(_is_random, value.operands))
    if not isinstance(value, Call):
        return False
    if value.path in _RANDOM:
        return not {"generator", "requires_grad"} & set(value.keywords)
    return value.is_method and value.name in _KEEPING and _is_random_value(value.receiver)


def _is_random_value(value: Value | None) -> bool:
    return value is not None and _is_random(value)


def _is_read_only(owner: Instance, name: str) -> bool:
    """Return whether only `__init__` assigns an attribute, and `forward` reads it."""
    stores, reads = 0, 0
    for cls in owner.cls.lineage():
        for method in cls.definition.body:
            for node in ast.walk(method):
                if not isinstance(node, ast.Attribute) or node.attr != name:
                    continue
                if isinstance(node.ctx, ast.Store):
                    stores += 1
                elif getattr(method, "name", "") == "forward":
                    reads += 1
    return stores == 1 and reads > 0


@dataclass(frozen=True)
class _Drawn:
    """Random values that `__init__` of a module drew."""

    values: Tensor  # some of them
    shape: tuple[int, ...]
    location: Location


class TensorShouldBeBufferWatcher(Watcher):
    """Compare the plain tensors of a module with random values that its `__init__` drew."""

    FUNCTIONS = ("rand", "randn", "randperm")

    def __init__(self) -> None:
        self._drawn: WeakKeyDictionary[nn.Module, list[_Drawn]] = WeakKeyDictionary()
        self._found: dict[str, tuple[Location, int]] = {}

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.arguments.get("generator") is not None or run.modules:
            return
        module = _find_constructed()
        if module is None or len(self._drawn) >= _MOST_MODULES:
            return
        values = read_part(call.result, _VALUES).clone()
        drawn = _Drawn(values, tuple(call.result.shape), run.locate())
        self._drawn.setdefault(module, []).append(drawn)

    def on_model(self, run: Script, model: nn.Module) -> None:
        for module in model.modules():
            for drawn in self._drawn.get(module, ()):
                for name, value in vars(module).items():
                    if _is_drawn(value, drawn):
                        described = f"{type(module).__name__}.{name}"
                        self._found.setdefault(described, (drawn.location, run.step + 1))

    def observe(self, run: Script) -> Iterator[Problem]:
        for name, (location, step) in self._found.items():
            yield Problem(
                f"{name} is a plain tensor with random values: `state_dict()` does not have them.",
                {"attribute": name},
                location=location,
                since_step=step,
            )


def _find_constructed() -> nn.Module | None:
    """Return the module whose `__init__` is being executed in the user's source."""
    from torch import nn

    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "__init__":
            made = frame.f_locals.get("self")
            if isinstance(made, nn.Module) and "_parameters" in vars(made):
                return made
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _is_drawn(value: Any, drawn: _Drawn) -> bool:
    """Return whether a value is a tensor of the drawn values, or a multiple of them."""
    import torch

    is_plain = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    if not is_plain or tuple(value.shape) != drawn.shape or value.requires_grad:
        return False
    now, then = (
        part.detach().reshape(-1)[:_VALUES].cpu().double() for part in (value, drawn.values)
    )
    if len(then) < 1 or not then.norm() > 0 or not now.norm() > 0:
        return False
    if len(then) == 1:
        return _is_round(float(now / then))
    return bool(torch.allclose(now / now.norm(), then / then.norm(), atol=1e-5))


def _is_round(factor: float) -> bool:
    """Return whether a factor has two digits at most, as one that a person wrote.

    Each number is some multiple of each other number, so a single value needs this.
    """
    return math.isclose(factor, float(f"{factor:.1e}"), rel_tol=1e-6)
