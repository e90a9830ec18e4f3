"""A parameter of the optimizer never gets a gradient.

It stays at its first value for the whole run, except for weight decay. Usually its layer is not
called, or its output is taken out of the graph by `detach()` or `no_grad()`, or a branch of the
forward pass that uses it is never taken. In DistributedDataParallel, the first backward pass waits
for it or raises an error.

Ignore it if the layer is for later, such as a head that is trained in a second phase.

Source: https://docs.pytorch.org/docs/stable/notes/ddp.html

Wrong:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.extra, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x)))


    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(12):
        optimizer.zero_grad()
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    import surestep


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.spare = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 1)
            self.spare.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.body(x)))


    x = torch.randn(64, 4)
    task = surestep.Task(Net(), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(max_steps=30, batch_size=8, max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import NOWHERE, Problem, at_event
from surestep.doctor.runtime.parameters import iter_parameters, list_held
from surestep.doctor.source.modules import has_parameters
from surestep.doctor.source.trace import Program
from surestep.doctor.source.values import Call, Class, Instance, last_name
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


SEVERITY = "warning"
REVIEWED = True
FIX = "Call the layer in forward() without detach(), or leave its parameters out of the optimizer."
_READS_ALL = re.compile(r"getattr|children\(|modules\(|__dict__|vars\(|requires_grad")
_FEWEST = 10  # steps before something is claimed
_CHECKED = 200  # steps; later ones are not checked
_SHOWN = 5  # names in a message


def check(program: Program) -> Iterator[Problem]:
    """Find layers that are an attribute of their module, and that the file never reads."""
    others = {name for name, is_own in _find_read(program.file.nodes) if not is_own}
    inherited = {last_name(base) for cls in program.classes for base in cls.bases}
    for event in program.events:
        target, owner = event.target, event.base
        if event.kind != "store" or event.file is not program.file or event.loops:
            continue
        if not isinstance(target, ast.Attribute) or not isinstance(owner, Instance):
            continue
        read = others | {name for name, _ in _find_read(ast.walk(owner.cls.definition))}
        is_layer = isinstance(event.value, Call) and has_parameters(event.value)
        if is_layer and target.attr not in read and _is_closed(owner.cls, inherited):
            yield at_event(
                event,
                f"Nothing in the file uses `{ast.unparse(target)}`: it gets no gradient.",
                assumed="No other file uses it.",
            )


def _find_read(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, bool]]:
    """Yield the attributes that are read, and whether they are those of `self`."""
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr, isinstance(node.value, ast.Name) and node.value.id == "self"


def _is_closed(cls: Class, inherited: set[str]) -> bool:
    """Return whether a class has its own forward pass, which names the layers that it calls."""
    source = ast.unparse(cls.definition)
    has_forward = any(getattr(node, "name", "") == "forward" for node in cls.definition.body)
    is_plain = cls.outside_bases == {"torch.nn.Module"} and len(list(cls.lineage())) == 1
    is_open = last_name(cls) in inherited or _READS_ALL.search(source) is not None
    return is_plain and has_forward and not is_open


class ParameterNeverGetsGradientWatcher(Watcher):
    """Remember the parameters that had no gradient at any step of their optimizer."""

    def __init__(self) -> None:
        self._optimizers: dict[int, int] = {}  # steps of each
        self._without: dict[int, dict[int, Tensor]] = {}  # parameters that had none so far
        self._count: dict[int, int] = {}
        self._locations = {0: NOWHERE}

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        key = id(optimizer)
        steps = self._optimizers[key] = self._optimizers.get(key, 0) + 1
        if steps == 1:
            used = list(iter_parameters(optimizer))
            self._count[key] = len(used)
            self._without[key] = {id(p): p for p in used if p.requires_grad}
            self._locations[key] = run.locate()
        if steps <= _CHECKED and self._without[key]:
            missing = self._without[key]
            self._without[key] = {i: p for i, p in missing.items() if p.grad is None}
        if steps == _FEWEST and _has_unheld_gradient(run):
            # SS202 reports the parameters that others replaced: those of no module.
            modules = run.find_modules("Module")
            owned = {id(p) for module in modules for p in module.parameters(recurse=False)}
            self._without[key] = {i: p for i, p in self._without[key].items() if i in owned}

    def observe(self, run: Script) -> Iterator[Problem]:
        for key, steps in self._optimizers.items():
            missing = [p for p in self._without[key].values() if p.requires_grad]
            # If none has one, another rule says why.
            if steps < _FEWEST or not missing or len(missing) == self._count[key]:
                continue
            names = [run.name(parameter) for parameter in missing[:_SHOWN]]
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            yield Problem(
                f"No step of {min(steps, _CHECKED)} had a gradient for {', '.join(names)}{more}, "
                f"of {self._count[key]} parameters of the optimizer.",
                {"steps": steps, "parameters": names, "count": len(missing)},
                location=self._locations[key],
                since_step=1,
            )


def _has_unheld_gradient(run: Script) -> bool:
    """Return whether a model has a parameter with a gradient that no optimizer has."""
    held = list_held(run.optimizers)
    parameters = (p for model in list(run.models) for p in model.parameters())
    return any(p.grad is not None and id(p) not in held for p in parameters)
