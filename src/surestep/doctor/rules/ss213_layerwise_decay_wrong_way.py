"""Learning rates that decay from layer to layer are largest in the first layers.

Layer-wise decay protects what a pretrained model has learned: the first layers are the most general
and get the smallest learning rate, the last layers the largest. `decay ** i` over the layers in the
order of the forward pass does the opposite: the first layers change most, the last ones hardly at
all. An index over `named_parameters()` is worse: it counts weights and biases, so the learning rate
shrinks several times for each layer. Nothing fails: fine-tuning is worse than without decay.

Ignore it if the first layers are meant to learn fastest.

Source: https://arxiv.org/abs/1801.06146, section 3.2 (discriminative fine-tuning)

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    groups = []
    for i, layer in enumerate(model.children()):
        groups.append({"params": layer.parameters(), "lr": 1e-3 * 0.9**i})
    optimizer = torch.optim.AdamW(groups)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    groups = [
        {"params": layer.parameters(), "lr": 1e-3 * 0.9 ** (len(model) - 1 - i)}
        for i, layer in enumerate(model)
    ]
    optimizer = torch.optim.AdamW(groups)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event, at_node
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.nodes import find_names
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import describe, is_made_by, options_of, strip_iterators
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Element,
    Operation,
    Unknown,
    Value,
    last_name,
    walk,
)
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

SEVERITY = "warning"
FIX = "Count from the last layer: lr * decay ** (len(layers) - 1 - i)."
_FEWEST_GROUPS = 3
_STRONGEST = 0.3  # factor from layer to layer: smaller ones are learning rates of parts
_TOLERANCE = 1e-3  # of the factors
_DECAY_NAME = re.compile(r"decay|llrd", re.IGNORECASE)
_LAYERS_NAME = re.compile(r"^(layers?|blocks?|stages|h)$")


def check(program: Program) -> Iterator[Problem]:
    """Find groups of parameters whose learning rate shrinks from the first layer on."""
    for trace in program.traces:
        if any(call.name == "reverse" for _, call in trace.calls):
            continue
        for group in _find_groups(trace):
            yield from _check_power(trace, group)
        for event in trace.events:
            yield from _check_product(event)


def _find_groups(trace: Trace) -> list[Collection]:
    """Return the groups that an optimizer gets, or that a function returns."""
    groups: dict[Collection, None] = {}
    for event in trace.events:
        call = event.call
        given = event.value if event.kind == "return" else None
        if call is not None and call.path.startswith((".add_param_group", "torch.optim.")):
            given = call.argument(0, "")
        for option in options_of(given):
            parts = (option, *option.inputs) if isinstance(option, Collection) else ()
            groups.update({part: None for part in parts if isinstance(part, Collection)})
    return list(groups)


def _check_power(trace: Trace, group: Collection) -> Iterator[Problem]:
    rate, parameters = group.entries.get("lr"), group.entries.get("params")
    if rate is None or parameters is None or group.file is None or group.node is None:
        return
    for factor in _factors_of(rate):
        match factor:
            case Operation(operator="**", operands=(base, index)) if _is_below_one(base):
                iterated = _iterated_by(trace, index)
                has_indexed = any(part in (iterated, index) for part in walk(parameters))
                if has_indexed and (text := _describe_order(iterated)):
                    node = factor.node or group.node
                    yield at_node(node, group.file, f"`{describe(rate)}`: {text}.")


def _factors_of(value: Value) -> Iterator[Value]:
    """Yield the factors of a product."""
    for option in options_of(value):
        if isinstance(option, Operation) and option.operator == "*":
            for operand in option.operands:
                yield from _factors_of(operand)
        else:
            yield option


def _is_below_one(value: Value) -> bool:
    if isinstance(value, Constant):
        return isinstance(value.value, float) and 0 < value.value < 1
    is_named = isinstance(value, (Unknown, Attribute))
    return is_named and bool(_DECAY_NAME.search(last_name(value)))


def _iterated_by(trace: Trace, index: Value) -> Value | None:
    """Return what an index counts: that of `enumerate(layers)`, or of `range(len(layers))`."""
    match index:
        case Unknown(node=ast.Call() as node):
            counts = (call for _, call in trace.calls if call.path == "enumerate")
            return next((c.argument(0, "iterable") for c in counts if c.node is node), None)
        case Element(of=Call(path="range", args=(Call(path="len", args=(layers,)),))):
            return layers
    return None


def _describe_order(iterated: Value | None) -> str:
    """Return what is wrong if the first layers come first; "" if that is not certain."""
    match layers := strip_iterators(iterated):
        case Call(path=".parameters" | ".named_parameters"):
            return "the index counts parameters, not layers, and the first get the largest rate"
        case Call(path=".children" | ".named_children"):
            is_in_order = True
        case Attribute(name=name):
            is_in_order = bool(_LAYERS_NAME.match(name))
        case _:
            is_in_order = is_made_by(layers, "torch.nn.ModuleList", "torch.nn.Sequential")
    return "the first layers get the largest learning rate" if is_in_order else ""


def _check_product(event: Event) -> Iterator[Problem]:
    """Find `lr *= decay` in a loop over layers that gives each group `lr`."""
    loop = event.loop
    match event.node, loop and loop.node:
        case ast.AugAssign(op=ast.Mult(), target=ast.Name(id=name)), ast.For() as node if loop:
            text = _describe_order(loop.iterated) if _is_below_one(event.value) else ""
            if text and _gives(node, name):
                yield at_event(event, f"`{ast.unparse(event.node)}`: {text}.")


def _gives(loop: ast.For, name: str) -> bool:
    """Return whether each pass of a loop makes a group of its layer with a named learning rate."""
    targets, is_given = find_names(loop.target), False
    nodes = list(ast.walk(loop))
    changed = [node.target for node in nodes if isinstance(node, ast.AugAssign)]
    for node in nodes:
        match node:
            case ast.Name(id=stored, ctx=ast.Store()) if stored == name and node not in changed:
                return False  # it begins again in each pass
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                match {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}:
                    case {"lr": ast.Name(id=rate), "params": parameters} if rate == name:
                        is_given |= bool(find_names(parameters) & targets)
    return is_given


class LayerwiseDecayWrongWayWatcher(Watcher):
    """Compare the learning rates of groups with the order of their layers in the model."""

    def __init__(self) -> None:
        self._mistake = Tally()
        self._rates: list[float] = []

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        for model in list(run.models):
            rates = _list_rates(model, optimizer)
            for checked in (rates, rates[:-1]):  # the head may have a learning rate for itself
                if not self._rates and len(checked) >= _FEWEST_GROUPS and _is_decay(checked):
                    self._rates = checked
                    self._mistake.add_here(run)

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._rates:
            yield self._mistake.report(
                f"The learning rates of {len(self._rates)} groups fall from {self._rates[0]:.3g} in"
                f" the first layers of the model to {self._rates[-1]:.3g} in later ones.",
                {"rates": self._rates},
            )


def _list_rates(model: nn.Module, optimizer: Optimizer) -> list[float]:
    """Return the learning rates of the groups in the order of the model's parameters.

    It is empty unless the parameters of each group follow each other.
    """
    order = {id(parameter): index for index, parameter in enumerate(model.parameters())}
    found = []
    for group in optimizer.param_groups:
        indices = sorted(order.get(id(p), -1) for p in group["params"])
        if not indices:
            continue
        if indices[0] < 0 or indices[-1] - indices[0] != len(indices) - 1:
            return []
        found.append((indices[0], float(group.get("initial_lr", group["lr"]))))
    return [rate for _, rate in sorted(found)]


def _is_decay(rates: list[float]) -> bool:
    """Return whether each rate is the one before, times the same factor below 1."""
    factors = [later / earlier for earlier, later in pairwise(rates)] if min(rates) > 0 else [0.0]
    return max(factors) - min(factors) < _TOLERANCE and _STRONGEST < factors[0] < 1
