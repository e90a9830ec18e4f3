"""Which operation computed a tensor last: the softmax at the end of a model, for example.

Models of the project and `nn.Sequential` are followed to their last operation. Operations that only
change the shape, the type or the device of a tensor are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from surestep.doctor.source.trace import Event, Program, Trace, once_per_trace
from surestep.doctor.source.training import describe, is_made_by, options_of, tensor_of
from surestep.doctor.source.values import Attribute, Call, Collection, Item, Operation, Value

CATEGORICALS = ("torch.distributions.Categorical", "torch.distributions.categorical.Categorical")
_MAX_DEPTH = 20
_FUNCTIONS = {
    **{name: name for name in ("softmax", "log_softmax", "sigmoid", "linear")},
    "logsigmoid": "log_sigmoid",
}
_AFTER = {
    ("exp", "log_softmax"): "softmax",
    ("exp", "log_sigmoid"): "sigmoid",
    ("log", "softmax"): "log_softmax",
    ("log", "sigmoid"): "log_sigmoid",
}
_MODULES = {
    "Softmax": "softmax",
    "Softmax2d": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "LogSigmoid": "log_sigmoid",
    "Linear": "linear",
    "Conv1d": "conv",
    "Conv2d": "conv",
    "Conv3d": "conv",
}
_RESHAPES = frozenset(
    "view reshape squeeze unsqueeze flatten unflatten transpose permute t movedim swapaxes view_as "
    "reshape_as".split()
)
_COPIES = frozenset(
    "contiguous float double half bfloat16 to type type_as cuda cpu clone detach requires_grad_"
    "".split()
)
_EDITS = frozenset("append add_module extend insert pop register_module __setitem__".split())


@dataclass(frozen=True, eq=False)
class Origin:
    """The operation that computed a tensor.

    Attributes:
        name: "softmax", "log_softmax", "sigmoid", "log_sigmoid", "linear" or "conv"; "" for others.
        value: its result, or the module at the end of a Sequential.
        settings: the call that has its options, such as `dim`.
        tensor: what it was computed from, if that is one expression.
        reshapes: the calls and items that changed the shape of the result, last first.
        modules: that were called on the way, by the expressions of the calls; both by their ids.
        assumed: a sentence on the choices that it depends on; "" if it does not.
    """

    name: str
    value: Value
    settings: Call | None = None
    tensor: Value | None = None
    reshapes: tuple[Value, ...] = ()
    modules: tuple[tuple[int, int], ...] = ()
    assumed: str = ""

    @property
    def line(self) -> int | None:
        """The line of the script."""
        return self.value.line


class Outputs:
    """The last operations behind the tensors of a script.

    Args:
        program: with all that it does; a tensor or a Sequential that it changes is not followed.
    """

    def __init__(self, program: Program) -> None:
        self._changed = frozenset().union(*map(_find_changed, program.traces))

    def find(self, value: Value | None) -> list[Origin]:
        """Return the last operation behind a tensor, for each value that it may be."""
        return self._find(value, (), 0)

    def all_are(self, value: Value | None, *names: str) -> Origin | None:
        """Return an operation behind a tensor, if all that it may be have one of these names."""
        found = self.find(value)
        return found[0] if found and all(origin.name in names for origin in found) else None

    def some_are(self, value: Value | None, *names: str) -> Origin | None:
        """Return an operation behind a tensor, if all that it may be in a run have these names.

        Where the script chooses which module it calls, a run has one of them.
        """
        found = self.find(value)
        is_certain = all(other.name in names for other in found)
        for origin in found:
            beside = (other for other in found if _may_be_of_one_run(other, origin))
            if all(other.name in names for other in beside):
                chosen = f"`{describe(value)}` calls the module that ends in line {origin.line}."
                return replace(origin, assumed="" if is_certain else chosen)
        return None

    def _find(self, value: Value | None, reshapes: tuple[Value, ...], depth: int) -> list[Origin]:
        return [
            replace(origin, modules=(*_find_called(option), *origin.modules))
            for option in _expand(value)
            for origin in self._find_one(option, reshapes, depth + 1)
        ]

    def _find_one(self, value: Value, reshapes: tuple[Value, ...], depth: int) -> list[Origin]:
        unknown = [Origin("", value, reshapes=reshapes)]
        if id(value) in self._changed or depth > _MAX_DEPTH:
            return unknown
        if isinstance(value, Item):
            return self._find_item(value, reshapes, depth)
        if _is_probs(value):
            return [Origin("softmax", value, reshapes=reshapes)]
        if not isinstance(value, Call):
            return unknown
        if value.result is not None:
            return self._find(value.result, reshapes, depth)
        if value.path == "()" or (value.is_method and value.name == "forward"):
            return self._find_module(value, reshapes)
        tensor = tensor_of(value)
        if value.is_method or value.path.startswith("torch."):
            if value.name in _RESHAPES:
                return self._find(tensor, (*reshapes, value), depth)
            if value.name in _COPIES:
                return self._find(tensor, reshapes, depth)
            if value.name in ("exp", "log"):
                return [
                    replace(origin, name=_AFTER.get((value.name, origin.name), ""), value=value)
                    for origin in self._find(tensor, reshapes, depth)
                ] or unknown
            name = _FUNCTIONS.get(value.name, "")
            return [Origin(name, value, value, tensor, reshapes)]
        return unknown

    def _find_item(self, value: Item, reshapes: tuple[Value, ...], depth: int) -> list[Origin]:
        found: list[Origin] = []
        for base in _returned(value.base):
            if not isinstance(base, Collection):
                found.extend(self._find(base, (*reshapes, value), depth))
                continue
            element = None if base.keys else base.find(value.index)
            if element is None:
                return [Origin("", value)]
            found.extend(self._find(element, reshapes, depth))
        return found

    def _find_module(self, call: Call, reshapes: tuple[Value, ...]) -> list[Origin]:
        modules = [self._last_module(option) for option in options_of(call.receiver)]
        tensor = call.argument(0, "input")
        return [
            Origin("", call, reshapes=reshapes)
            if module is None
            else Origin(_MODULES[module.name], module, module, tensor, reshapes)
            for module in modules
        ]

    def _last_module(self, made: Value | None) -> Call | None:
        for _ in range(_MAX_DEPTH):
            if not isinstance(made, Call) or not made.path.startswith("torch.nn."):
                return None
            if made.name in _MODULES:
                return made
            if made.name != "Sequential" or id(made) in self._changed:
                return None
            options = options_of(_last_of(made))
            made = options[0] if len(options) == 1 else None
        return None


def _may_be_of_one_run(a: Origin, b: Origin) -> bool:
    """Return whether no call has another module for one operation than for the other."""
    called = dict(a.modules)
    return all(called.get(node, module) == module for node, module in b.modules)


def _find_called(value: Value) -> tuple[tuple[int, int], ...]:
    """Return which module a call is of, and its expression, by their ids."""
    if isinstance(value, Call) and value.path == "()":
        return ((id(value.node), id(value.receiver)),)
    return ()


def _expand(value: Value | None) -> tuple[Value, ...]:
    """Return the values that a tensor may be; `options_of` leaves out `x.to(device)`."""
    if isinstance(value, Call):
        return (value,)
    return options_of(value)


def _is_probs(value: Value) -> bool:
    """Return whether a value is the probabilities of a distribution over classes."""
    match value:
        case Attribute(name="probs", base=base):
            return is_made_by(base, *CATEGORICALS)
    return False


def _returned(value: Value) -> list[Value]:
    """Return what models of the project return, for each option of a value."""
    found: list[Value] = []
    for option in _expand(value):
        result = option.result if isinstance(option, Call) else None
        found.extend([option] if result is None else _returned(result))
    return found


def _last_of(sequential: Call) -> Value | None:
    """Return the last module of `nn.Sequential(...)`."""
    if not sequential.args or sequential.keywords:
        return None
    last = sequential.args[-1]
    if isinstance(last, Operation) and last.operator == "*args":
        last = last.operands[0]
        return _last_element(last)
    if isinstance(last, Call) and last.name == "OrderedDict" and len(sequential.args) == 1:
        pair = _last_element(last.argument(0, ""))
        if isinstance(pair, Collection) and len(pair.elements) == 2:
            return pair.elements[1]
        return pair
    return last


def _last_element(value: Value | None) -> Value | None:
    if isinstance(value, Collection) and value.is_complete and value.elements:
        return value.elements[-1]
    return None


@once_per_trace
def _find_changed(trace: Trace) -> frozenset[int]:
    """Return the ids of what the events of a trace change in place."""
    return frozenset(id(value) for event in trace.events for value in _changed_by(event))


def _changed_by(event: Event) -> list[Value]:
    """Return the tensors and modules that an event changes in place."""
    if event.kind in ("store", "augment"):
        return [] if event.base is None else [event.base]
    call = event.call
    if call is None:
        return []
    is_in_place = call.name.endswith("_") and not call.name.endswith("__")
    if call.is_method and (is_in_place or call.name in _EDITS):
        return [] if call.receiver is None else [call.receiver]
    if is_in_place or call.name == "setattr":
        return list(call.args[:1])
    out = call.keywords.get("out")
    return [] if out is None else [out]
