"""A module keeps layers in a plain list, tuple or dict, where PyTorch does not find them.

Only modules that are attributes, or in a `ModuleList` or `ModuleDict`, belong to their parent.
Those in a list are not in `parameters()`, so no optimizer updates them. They are not in
`state_dict()`, and `to(device)`, `train()` and `eval()` do not reach them. On the CPU nothing
fails: they keep their first values. In a run of surestep, it is an error if they get a gradient.

Ignore it if they are hidden on purpose, such as a frozen model that must not be saved. A list of
one module, or of modules that are registered as well, is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html

Wrong:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, depth=3):
            super().__init__()
            self.layers = []
            for _ in range(depth):
                self.layers.append(nn.Linear(4, 4))
            self.head = nn.Linear(4, 1)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return self.head(x)


    print(Net()(torch.randn(2, 4)))

Right:

    import torch
    from torch import nn

    import surestep


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.layers = nn.Linear(4, 1), {}
            self.layers["first"] = nn.Linear(4, 4).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers["first"](x))


    x = torch.randn(64, 4)
    task = surestep.Task(Net(), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.parameters import list_held
from surestep.doctor.source.modules import has_parameters
from surestep.doctor.source.trace import Event, Program, Trace, once_per_trace
from surestep.doctor.source.training import is_made_by, is_model
from surestep.doctor.source.values import Call, Collection, Instance, Value, last_name, walk
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


SEVERITY = "error"
REVIEWED = True
FIX = "Put them into torch.nn.ModuleList, or torch.nn.ModuleDict."
_MOST_HIDDEN = 1000  # modules

_REGISTERS = ("ModuleList", "ModuleDict", "Sequential", "add_module", "register_module", "setattr")
_FREEZES = ("eval", "requires_grad_")


def check(program: Program) -> Iterator[Problem]:
    """Find attributes of modules that are plain collections of layers."""
    for trace in program.traces:
        for event in trace.events:
            owner, kept = event.base, event.value
            if event.kind != "store" or not isinstance(event.target, ast.Attribute):
                continue
            if not isinstance(owner, Instance) or not owner.cls.is_module:
                continue
            if isinstance(kept, Collection) and _hides(kept, owner, trace, event):
                yield at_event(
                    event,
                    f"The layers in `{ast.unparse(event.target)}` are in a plain {kept.type}: they "
                    "are not trained, moved or saved with the module.",
                )


def _hides(kept: Collection, owner: Instance, trace: Trace, event: Event) -> bool:
    if kept.type not in ("list", "tuple", "dict") or not kept.elements:
        return False
    if kept.is_complete and len(kept.elements) == 1:
        return False  # the usual way to hide a module
    if not _are_layers(kept, trace):
        return False
    if any(isinstance(value, Call) and value.name in _FREEZES for value in kept.elements):
        return False
    hidden = {id(kept), *map(id, kept.elements)}
    if any(id(value) in hidden and value is not kept for value in owner.attributes.values()):
        return False
    return not any(_registers(other, owner, hidden) for other in trace.events)


def _are_layers(kept: Collection, trace: Trace) -> bool:
    """Return whether all elements are modules, of which one has parameters or may be any module."""
    given = _find_checked(trace)
    if not given.isdisjoint(kept.elements):  # the others are made from what is not a module yet
        return True
    are_modules = all(isinstance(v, (Call, Instance)) and is_model(v) for v in kept.elements)
    return are_modules and any(map(has_parameters, kept.elements))


@once_per_trace
def _find_checked(trace: Trace) -> set[Value]:
    """Return what is appended where `isinstance(value, torch.nn.Module)` is true."""
    return {
        value
        for event, call in trace.calls
        if call.name == "append"
        for value in call.args
        for branch in event.branches
        if branch.is_taken
        and is_made_by(branch.test, "isinstance")
        and isinstance(branch.test, Call)
        and branch.test.args[:1] == (value,)
        and last_name(branch.test.argument(1, "")) == "Module"
    }


def _registers(event: Event, owner: Instance, hidden: set[int]) -> bool:
    call = event.call
    if call is None:
        return False
    if call.name in ("add_module", "register_module", "setattr"):
        return any(value is owner for value in (call.receiver, *call.args[:1]))
    if call.name in _FREEZES:
        return any(_leads_to(value, hidden) for value in call.inputs)
    return call.name in _REGISTERS and any(_leads_to(value, hidden) for value in call.inputs)


def _leads_to(value: Value, hidden: set[int]) -> bool:
    return any(id(part) in hidden for part in walk(value))


class ModuleHiddenInListOrDictWatcher(Watcher):
    """Find modules in plain lists, tuples and dicts that are called with gradients."""

    def __init__(self) -> None:
        self._hidden: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._registered: set[int] = set()
        self._held: set[int] = set()
        self._found: dict[str, tuple[Location, int, set[int]]] = {}

    def on_model(self, run: Script, model: nn.Module) -> None:
        modules = list(model.modules())
        self._registered |= {id(p) for module in modules for p in module.parameters(False)}
        if len(self._hidden) < _MOST_HIDDEN:
            for parent in modules:
                for name, module in _list_in_collections(parent):
                    self._hidden[module] = f"{type(parent).__name__}.{name}"

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        self._held |= list_held([optimizer])

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        name = self._hidden.get(module) if self._hidden and len(run.modules) > 1 else None
        if name is None or name in self._found or run.in_backward:
            return
        import torch

        trained = {id(p) for p in module.parameters() if p.requires_grad}
        if trained and torch.is_grad_enabled():
            self._found[name] = run.locate(), run.step + 1, trained

    def observe(self, run: Script) -> Iterator[Problem]:
        for name, (location, step, trained) in self._found.items():
            if trained.isdisjoint(self._registered | self._held):
                yield Problem(
                    f"{name} has modules in a plain collection: they compute, and are not in "
                    "`parameters()` or `state_dict()`.",
                    {"attribute": name},
                    location=location,
                    since_step=step,
                )


def _list_in_collections(parent: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules with parameters in plain collections, and the names of these."""
    from torch import nn

    for name, value in vars(parent).items():
        if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
            continue
        values = value.values() if isinstance(value, dict) else value
        modules = [part for part in values if isinstance(part, nn.Module)]
        if len(modules) > 1:  # one alone is often hidden on purpose
            yield from ((name, part) for part in modules if any(True for _ in part.parameters()))
