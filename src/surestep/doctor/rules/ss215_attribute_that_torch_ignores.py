"""An attribute is set that torch does not read: misspelled, or of another object.

`parameter.require_grad = False` raises no error, as Python adds the attribute, and the parameter is
trained on. So does `layer.requires_grad = False`: a module has parameters, but no gradient.
`optimizer.lr = 0.01` leaves the learning rate, which is in `optimizer.param_groups`.

Ignore it if the attribute is a note that other code reads.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#setting-requires-grad

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for layer in model.children():
        layer.requires_grad = False
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for parameter in model[0].parameters():
        parameter.requires_grad = False
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import (
    is_made_by,
    is_model,
    is_optimizer,
    options_of,
)
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Constant,
    Element,
    Instance,
    Item,
    Value,
)
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = (
    "Set requires_grad of each parameter, or call module.requires_grad_(False); for an optimizer, "
    "set group['lr'] of each of its param_groups."
)
_OPTIONS = ("lr", "learning_rate", "weight_decay", "momentum")
_PARTS = re.compile(  # of models of libraries
    r"^(fc|classifier|features|layer\d|conv1|bn1|backbone|encoder|decoder|head|body|base_model"
    r"|embeddings?|bert|roberta|transformer|blocks?)$"
)
_MODULES = (".children", ".modules", ".named_children", ".named_modules")


def check(program: Program) -> Iterator[Problem]:
    """Find attributes of parameters, modules and optimizers that only Python knows."""
    reported = set()
    for event in program.events:
        target = event.target
        if event.kind != "store" or not isinstance(target, ast.Attribute):
            continue
        reason = _find_reason(program, event, target)
        if reason and event.node not in reported:
            reported.add(event.node)
            yield at_event(event, f"`{ast.unparse(target)} = ...` changes nothing: {reason}.")


def _find_reason(program: Program, event: Event, target: ast.Attribute) -> str:
    name, base = target.attr, event.base
    if _is_misspelled(name):
        is_flag = isinstance(event.value, Constant) and isinstance(event.value.value, bool)
        is_read = _is_read(program, lambda read: read.attr == name)
        return "the attribute is called `requires_grad`" if is_flag and not is_read else ""
    if name == "requires_grad" and base is not None:
        is_module = _is_module(base) or _is_called(program, target.value, base)
        return "a module has no such attribute, only its parameters have" if is_module else ""
    if name in _OPTIONS and is_optimizer(base) and is_made_by(base, "torch.optim."):
        text = ast.unparse(target)
        is_read = _is_read(program, lambda read: ast.unparse(read) == text)
        return "" if is_read else "the optimizer reads its `param_groups`"
    return ""


def _is_misspelled(name: str) -> bool:
    is_near = SequenceMatcher(None, name, "requires_grad").ratio() > 0.85
    return is_near and name != "requires_grad"


def _is_read(program: Program, is_same: Callable[[ast.Attribute], bool]) -> bool:
    """Return whether one of the files reads such an attribute."""
    return any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_same(node)
        for file in program.files
        for node in file.nodes
    )


def _is_module(value: Value) -> bool:
    """Return whether a value is certainly a module that does not handle the attribute itself."""
    options = options_of(value)
    return bool(options) and all(map(_is_plain_module, options))


def _is_called(program: Program, written: ast.expr, value: Value) -> bool:
    """Return whether the file calls an attribute of an object, as no tensor can be called."""
    if isinstance(value, Instance) or not isinstance(written, ast.Attribute):
        return False
    text = ast.unparse(written)
    calls = (node.func for node in program.file.nodes if isinstance(node, ast.Call))
    return any(isinstance(f, ast.Attribute) and ast.unparse(f) == text for f in calls)


def _is_plain_module(value: Value) -> bool:
    match value:
        case Instance(cls=cls):
            handles = any(cls.find(name) for name in ("requires_grad", "__setattr__"))
            return cls.is_module and not handles
        case Element(of=Call(path=path)) | Item(base=Element(of=Call(path=path))):
            return path in _MODULES
        case Call(path=path) if path.endswith(("Parameter", "Buffer")):  # of torch.nn, and a tensor
            return False
        case Attribute(base=base, name=name):
            return bool(_PARTS.match(name)) and is_model(base)
    return is_model(value)


class AttributeThatTorchIgnoresWatcher(Watcher):
    """Find modules and parameters that are trained, and have an attribute that has no effect."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}
        self._first = Tally()  # the first step with one of them

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        for model in list(run.models):
            for name, module in model.named_modules():
                self._check_module(name or type(model).__name__, module)
        if self._found and not self._first.mistakes:
            self._first.add_here(run)

    def _check_module(self, name: str, module: nn.Module) -> None:
        is_off = vars(module).get("requires_grad") is False
        if is_off and any(parameter.requires_grad for parameter in module.parameters()):
            self._found[name] = "requires_grad"
        for own, parameter in module.named_parameters(recurse=False):
            for attribute in filter(_is_misspelled, vars(parameter)):
                self._found[f"{name}.{own}"] = attribute

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._found:
            name, attribute = next(iter(self._found.items()))
            yield self._first.report(
                f"`{attribute}` was set on {name}, where torch does not read it: the parameters "
                "are trained.",
                {"names": list(self._found)},
            )
