"""What the modules of a script consist of."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.training import is_model, is_same, options_of, strip
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Class,
    Collection,
    Constant,
    Either,
    Element,
    Function,
    Instance,
    Item,
    Operation,
    Symbol,
    Unknown,
    Value,
    is_module_path,
    walk,
)

_MODEL_NAME = re.compile(r"(^|_)(model|net|network|classifier)(_|\d|$)", re.IGNORECASE)
_OWN_METHODS = (".parameters", ".named_parameters", ".train", ".eval")
# Methods that compute an output of a model, or its loss, beside a call of the model itself.
FORWARD_METHODS = frozenset(
    (".forward", ".predict", ".inference", ".calculate_loss", ".compute_loss", ".get_loss")
)
_CONTAINERS = ("Sequential", "ModuleList", "ModuleDict")
_MODE_LAYERS = re.compile(r"^(Lazy|Sync)?BatchNorm|Dropout|^RReLU$")
_DROPOUT_OPTION = re.compile(r"^(LSTM|GRU|RNN|MultiheadAttention)$")
_TRANSFORMERS = re.compile(r"^Transformer(Encoder|Decoder)?(Layer)?$")
_PARAMETER_LAYERS = re.compile(
    r"^(Lazy)?(Linear|Bilinear|Conv|Embedding|BatchNorm|LayerNorm|RMSNorm|GroupNorm|LSTM|GRU|RNN"
    r"|MultiheadAttention|Transformer|PReLU)|^SyncBatchNorm$"
)


def is_named_model(value: Value | None) -> bool:
    """Return whether a value is a module, by how it was made or by its name."""
    options = options_of(value)
    return bool(options) and all(
        is_model(option)
        or (isinstance(option, (Unknown, Attribute)) and bool(_MODEL_NAME.search(option.name)))
        for option in options
    )


def is_used_as_module(trace: Trace, value: Value | None) -> bool:
    """Return whether a trace uses a value that it did not make as a module of PyTorch.

    It asks for its parameters, or switches its mode. So it may do with one of another library.
    """
    value = strip(value)
    is_of_library = isinstance(value, Call) and value.receiver is None and value.name[:1].isupper()
    if not is_of_library and not isinstance(value, (Unknown, Attribute, Item)):
        return False
    return any(is_same(owner, value) for owner in _find_owners(trace))


@once_per_trace
def _find_owners(trace: Trace) -> list[Value]:
    """Return what methods are called on that modules have, and little else."""
    owners = (call.receiver for _, call in trace.calls if call.path in _OWN_METHODS)
    return [owner for owner in owners if owner is not None]


def find_layers(model: Value | None) -> tuple[list[Call], bool]:
    """Return the layers of a module that are made outside the project, and whether they are all."""
    layers: list[Call] = []
    seen: set[int] = set()
    is_complete = _collect(model, layers, seen)
    return layers, is_complete


def _collect(value: Value | None, layers: list[Call], seen: set[int]) -> bool:
    value = strip(value)
    if value is None or id(value) in seen:
        return True
    seen.add(id(value))
    match value:
        case Instance() if value.cls.is_module:
            is_plain = value.cls.outside_bases <= {"torch.nn.Module"}
            parts = [_collect(part, layers, seen) for part in value.attributes.values()]
            return is_plain and all(parts)
        case Call(path=path) if path.startswith("torch.nn.") and value.name in _CONTAINERS:
            given = value.arguments
            return all(_collect(part, layers, seen) for part in given)
        case Call(path=path) if is_module_path(path) or value.name == "create_model":
            layers.append(value)
            return path.startswith("torch.nn.")
        case Collection(elements=elements):
            return all(_collect(part, layers, seen) for part in elements)
        case Operation(operator="*args", operands=parts) | Either(options=parts):
            return all(_collect(part, layers, seen) for part in parts)
        case Constant() | Symbol() | Class() | Function():
            return True
        case Call(path=path):
            return path.startswith("torch.") and not path.startswith("torch.hub.")
    return False


def depends_on_mode(model: Value | None) -> bool | None:
    """Return whether a module computes something else in eval mode; None if it is not certain."""
    layers, is_complete = find_layers(model)
    if any(map(_has_mode, layers)):
        return True
    model = strip(model)
    if isinstance(model, Instance) and any(map(_reads_mode, model.cls.lineage())):
        return True
    return False if is_complete and model is not None else None


def _has_mode(layer: Call) -> bool:
    if layer.path.startswith("torchvision.models.") or layer.name == "create_model":
        return True
    if _MODE_LAYERS.search(layer.name):
        return not _is_zero(layer.argument(0, "p"))
    dropout = layer.keywords.get("dropout")
    if _TRANSFORMERS.match(layer.name):
        return not _is_zero(dropout) and layer.name.endswith(("Layer", "Transformer"))
    return bool(_DROPOUT_OPTION.match(layer.name)) and dropout is not None and not _is_zero(dropout)


def _is_zero(value: Value | None) -> bool:
    return isinstance(value, Constant) and value.value in (0, False)


def _reads_mode(cls: Class) -> bool:
    nodes = ast.walk(cls.definition)
    return any(isinstance(node, ast.Attribute) and node.attr == "training" for node in nodes)


def has_parameters(value: Value | None) -> bool:
    """Return whether a value is certainly a module with parameters."""
    options = options_of(value)
    return bool(options) and all(
        is_model(option)
        and any(
            _PARAMETER_LAYERS.match(layer.name) or layer.path.startswith("torchvision.models.")
            for layer in find_layers(option)[0]
        )
        for option in options
    )


def contains(outer: Value | None, inner: Value | None) -> bool:
    """Return whether a module, or an object of the project, certainly holds another one."""
    outer = strip(outer)
    part = strip(inner)
    while isinstance(part, (Attribute, Item)):
        part = strip(part.base)
        if is_same(part, outer):
            return True
    return any(is_same(part, inner) for part in _traverse_parts(outer))


def _traverse_parts(value: Value | None) -> Iterator[Value]:
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        found = strip(waiting.pop())
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if found is not value:
            yield found
        if isinstance(found, Instance):
            waiting.extend(found.attributes.values())
        elif isinstance(found, Collection) or (
            isinstance(found, Call) and found.name in _CONTAINERS
        ):
            waiting.extend(found.inputs)


def traverse_inputs(
    value: Value, limit: int = 500, *, stop_at: Callable[[Value], bool] | None = None
) -> Iterator[Value]:
    """Yield a value and what it was made from, as `walk` does, but not inside a module."""
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < limit:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting.extend(() if stop_at is not None and stop_at(found) else found.inputs)


def models_of(optimizer: Value | None) -> list[Value]:
    """Return the modules whose `parameters()` an optimizer was given."""
    models: list[Value] = []
    for option in options_of(optimizer):
        if not isinstance(option, Call):
            continue
        for given in option.arguments:
            for found in traverse_inputs(given):
                if isinstance(found, Call) and found.path in (".parameters", ".named_parameters"):
                    model = strip(found.receiver)
                    if model is not None:
                        models.append(model)
    return models


def find_switched(event: Event, *, is_trained: bool) -> Value | None:
    """Return the module whose parameters an event freezes or unfreezes."""
    value, call = event.value, event.call
    changed: Value | None = None
    if event.kind == "store" and isinstance(event.target, ast.Attribute):
        if event.target.attr == "requires_grad" and _is_constant(value, is_trained):
            changed = event.base
    elif call is not None and call.path == ".requires_grad_":
        given = call.argument(0, "requires_grad")
        if (given is None and is_trained) or _is_constant(given, is_trained):
            changed = call.receiver
    changed = strip(changed)
    while True:
        match changed:
            case Element(of=inner):
                changed = strip(inner)
            case Item(base=Element() as inner):  # of named_parameters()
                changed = strip(inner)
            case Call(path=".parameters" | ".named_parameters", receiver=inner):
                changed = strip(inner)
            case _:
                return changed


def _is_constant(value: Value | None, expected: bool) -> bool:
    return isinstance(value, Constant) and value.value is expected


def is_in_forward(event: Event) -> bool:
    """Return whether an event is in the `forward` of a module, or a function that it calls."""
    return any(
        function.name == "forward"
        and isinstance(function.owner, Instance)
        and function.owner.cls.is_module
        for function in event.stack
    )


def has_self(event: Event) -> bool:
    """Return whether an event is in a method of a module in which `self` is the module."""
    function = event.stack[-1] if event.stack else None
    if function is None or not isinstance(function.owner, Instance):
        return False
    parameters = [arg.arg for arg in function.definition.args.args]
    is_method = parameters[:1] == ["self"] and not function.has_decorator("staticmethod")
    return is_method and function.owner.cls.is_module


def reads_mode(value: Value | None) -> bool:
    """Return whether a value depends on the mode of a module."""
    return value is not None and any(
        isinstance(part, (Attribute, Unknown)) and "training" in part.name for part in walk(value)
    )
