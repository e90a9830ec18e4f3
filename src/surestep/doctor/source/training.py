"""The parts of a training step: which call zeroes gradients, steps an optimizer, and so on.

Objects are known by how they were made, such as `torch.optim.Adam(...)`. A parameter of a function
has only its name, so `optimizer` is an optimizer. A rule that is wrong if the name lies should ask
`is_made_by` instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from surestep.doctor.source.nodes import describe_source
from surestep.doctor.source.operators import COMPARISONS
from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Either,
    Element,
    Instance,
    Item,
    Operation,
    Unknown,
    Value,
    is_module_path,
    join,
    last_name,
    walk,
)
from surestep.doctor.source.wrapping import MOVES, PREPARES, WRAPPERS

_SCHEDULER_PATHS = ("torch.optim.lr_scheduler.", "torch.optim.swa_utils.SWALR", "timm.scheduler.")
_OPTIMIZER_NAME = re.compile(r"(^|_)(opt|optim|optimizer|optimiser)s?(_|\d|$)", re.IGNORECASE)
_SCHEDULER_NAME = re.compile(r"(^|_)(lr_)?(sched|scheduler)s?(_|\d|$)", re.IGNORECASE)
_SCALER_NAME = re.compile(r"(^|_)(grad_?)?scaler(_|\d|$)", re.IGNORECASE)
_SCHEDULER_CALLS = re.compile(r"^(get_\w*(schedule|scheduler)\w*|\w+Schedule|create_scheduler\w*)$")
_OPTIMIZER_CALLS = re.compile(
    r"^((get|make|create|build|init)_optim(izer|iser)?|\w*(Adam|AdamW|SGD|[Oo]ptimi[zs]er))$"
)
_MODEL_CALLS = ("from_pretrained", "from_config", "create_model", "load_from_checkpoint")
_BUILTINS = ("float", "compile")
_ITERATORS = frozenset(("enumerate", "tqdm", "iter", "track", "list", "tuple"))


@dataclass(frozen=True, eq=False)
class Action:
    """A call that is part of a training step.

    Attributes:
        kind: "zero_grad", "backward", "step", "schedule", "clip", "unscale", "scaler_step" or
            "update".
        event: the call, or the assignment of `.grad`.
        target: the optimizer of "zero_grad" and both steps, the loss of "backward", the scheduler
            of "schedule", what "clip" is given; None if all are meant.
    """

    kind: str
    event: Event
    target: Value | None

    @property
    def is_step(self) -> bool:
        """Whether an optimizer takes a step, with or without a scaler."""
        return self.kind in ("step", "scaler_step")


@once_per_trace
def find_actions(trace: Trace) -> list[Action]:
    """Return the parts of training steps in a trace, in order."""
    buffers = _find_gradient_buffers(trace)
    found = (_classify(event, buffers) for event in trace.events)
    return [action for action in found if action is not None]


def _find_gradient_buffers(trace: Trace) -> frozenset[Value]:
    """Return the tensors of which gradients are views: `p.grad = flat[:4].view_as(p)`."""
    return frozenset(
        part
        for event in trace.events
        if event.kind == "store" and getattr(event.target, "attr", "") == "grad"
        for part in walk(event.value, 20)
        if isinstance(part, Call)
    )


def takes_steps(trace: Trace) -> bool:
    """Return whether a trace may train something.

    A script with a backward pass and without a step tests a layer, or measures its memory.
    """
    return any(call.name == "step" for _, call in trace.calls)


def _classify(event: Event, buffers: frozenset[Value]) -> Action | None:
    if event.kind == "store" and isinstance(event.target, ast.Attribute):
        is_grad = event.target.attr == "grad" and isinstance(event.value, Constant)
        return Action("zero_grad", event, None) if is_grad else None
    call = event.call
    if call is None:
        return None
    receiver, first = call.receiver, call.argument(0, "")
    match call.name:
        case "zero_grad":
            return Action("zero_grad", event, receiver)
        case "zero_" | "fill_" if last_name(receiver) == "grad" or receiver in buffers:
            return Action("zero_grad", event, None)
        case "backward" | "manual_backward":
            has_loss = first is not None and not isinstance(first, Constant)
            is_of_loss = call.is_method and not (has_loss and is_coordinator(receiver))
            return Action("backward", event, receiver if is_of_loss else first)
        case "step" if is_scaler(receiver):
            return Action("scaler_step", event, first)
        case "step" if is_scheduler(receiver):
            return Action("schedule", event, receiver)
        case "step" if is_optimizer(receiver):
            return Action("step", event, receiver)
        case "step_update" | "step_epoch" if is_scheduler(receiver):
            return Action("schedule", event, receiver)
        case "clip_grad_norm_" | "clip_grad_value_" | "clip_grad_norm" | "clip_gradients":
            return Action("clip", event, first if first is not None else receiver)
        case "unscale_" | "unscale_gradients":
            return Action("unscale", event, first)
        case "update" if is_scaler(receiver):
            return Action("update", event, receiver)
    return None


def is_coordinator(value: Value | None) -> bool:
    """Return whether a value is an Accelerator or the like, whose `backward` takes a loss."""
    name = last_name(value).lower()
    if isinstance(value, Instance):
        return True  # a module with its own backward method
    return any(word in name for word in ("accelerator", "fabric", "engine", "strategy", "runner"))


def strip(value: Value | None) -> Value | None:
    """Return what was wrapped or moved: `model` for `DDP(model.to(device))`."""
    while isinstance(value, Call) and value.path not in _BUILTINS:
        if value.name not in MOVES and value.name not in WRAPPERS:
            return value
        is_of_coordinator = value.name in PREPARES or value.receiver is None
        inner = value.argument(0, "") if is_of_coordinator else value.receiver
        if inner is None:
            return value
        value = inner
    return value


def strip_iterators(value: Value | None) -> Value | None:
    """Return what a loop iterates over: `loader` for `enumerate(tqdm(loader))`."""
    while isinstance(value := strip(value), Call) and value.name in _ITERATORS:
        inner = value.argument(0, "iterable")
        if inner is None:
            break
        value = inner
    return value


def options_of(value: Value | None) -> tuple[Value, ...]:
    """Return the values that a value may be, each stripped."""
    value = strip(value)
    if isinstance(value, Either):
        return tuple(inner for option in value.options for inner in options_of(option))
    return () if value is None else (value,)


def _kinds_of(value: Value | None) -> tuple[Value, ...]:
    """Return the values that a value may be, those that a loop takes from a list included.

    The elements of a list that is not complete show of which kind they are, not which ones.
    """
    return tuple(
        kind
        for option in options_of(value)
        for kind in (
            options_of(join(*option.of.elements))
            if isinstance(option, Element)
            and isinstance(option.of, Collection)
            and option.of.elements
            and not option.of.keys
            else (option,)
        )
    )


def is_same(a: Value | None, b: Value | None) -> bool:
    """Return whether two values are the same object whenever the script runs."""
    a, b = strip(a), strip(b)
    if a is b:
        return a is not None
    match a, b:
        case Unknown(name=x), Unknown(name=y):
            return x == y and x != "" and a.file is b.file
        case Attribute(base=p, name=x), Attribute(base=q, name=y):
            return x == y and is_same(p, q)
        case Item(base=p, index=Constant(value=x)), Item(base=q, index=Constant(value=y)):
            return bool(x == y) and is_same(p, q)
    return False


def may_be_same(a: Value | None, b: Value | None) -> bool:
    """Return whether two values can be the same object, as far as the source shows.

    Two objects that the script makes are different, unless one of them holds the other, as a
    wrapper does. Anything else may be the same.
    """
    if a is None or b is None:
        return True
    pairs = [(x, y) for x in options_of(a) for y in options_of(b)]
    return any(x is y or _holds(x, y) or _holds(y, x) or not _are_made(x, y) for x, y in pairs)


def _are_made(*values: Value) -> bool:
    return all(isinstance(value, Call | Instance) for value in values)


def _holds(a: Value, b: Value) -> bool:
    """Return whether an object of the project has another one as an attribute."""
    return isinstance(a, Instance) and any(
        held is b for value in a.attributes.values() for held in options_of(value)
    )


def _is_one(value: Value, paths: tuple[str, ...], names: re.Pattern[str] | None) -> bool:
    if isinstance(value, Call):
        return value.path.startswith(paths)
    if isinstance(value, Instance):
        return any(base.startswith(paths) for base in value.cls.outside_bases)
    return names is not None and bool(names.search(_name_of(value)))


def _name_of(value: Value) -> str:
    if isinstance(value, Item):
        return _name_of(value.base)
    return last_name(value)


_OPTIMIZER_PATHS = (
    "torch.optim.",
    ".optimizers",  # of a LightningModule
    "bitsandbytes.optim.",
    "apex.optimizers.",
    "transformers.AdamW",
    "transformers.Adafactor",
    "timm.optim.",
    "torch_optimizer.",
    "pytorch_optimizer.",
    "lion_pytorch.",
    "deepspeed.ops.adam.",
)


def is_optimizer(value: Value | None) -> bool:
    """Return whether a value is an optimizer, by how it was made or by its name."""
    options = _kinds_of(value)
    are_optimizers = bool(options) and all(
        _is_one(option, _OPTIMIZER_PATHS, _OPTIMIZER_NAME)
        or (isinstance(option, Call) and _is_optimizer_of_library(option))
        for option in options
    )
    return are_optimizers and not is_scheduler(value)


def _is_optimizer_of_library(made: Call) -> bool:
    """Return whether a function or a class of another library makes optimizers, by its name."""
    return not made.path.startswith("torch.") and bool(_OPTIMIZER_CALLS.match(made.name))


def is_scheduler(value: Value | None) -> bool:
    """Return whether a value is a schedule of learning rates, by how it was made or its name."""
    options = _kinds_of(value)
    return bool(options) and all(
        _is_one(option, _SCHEDULER_PATHS, _SCHEDULER_NAME)
        or (isinstance(option, Call) and bool(_SCHEDULER_CALLS.match(option.name)))
        for option in options
    )


def is_scheduler_name(name: str) -> bool:
    """Return whether a variable is named as a schedule of learning rates."""
    return bool(_SCHEDULER_NAME.search(name))


def is_scaler(value: Value | None) -> bool:
    """Return whether a value is a GradScaler, by how it was made or by its name."""
    options = options_of(value)
    return bool(options) and all(
        last_name(option) in ("GradScaler", "ShardedGradScaler")
        or (
            not isinstance(option, (Call, Instance)) and bool(_SCALER_NAME.search(_name_of(option)))
        )
        for option in options
    )


def is_model(value: Value | None) -> bool:
    """Return whether a value is certainly a module of PyTorch."""
    options = options_of(value)
    return bool(options) and all(map(_is_one_model, options))


def _is_one_model(value: Value) -> bool:
    if isinstance(value, Instance):
        return value.cls.is_module
    if isinstance(value, Call):
        return is_module_path(value.path) or value.name in _MODEL_CALLS
    return False


def is_made_by(value: Value | None, *paths: str) -> bool:
    """Return whether a value is certainly the result of calling one of these.

    Args:
        value: of the script.
        paths: such as "torch.optim.Adam", or "torch.optim." for all below it.
    """
    options = options_of(value)
    return bool(options) and all(
        isinstance(option, Call)
        and any(option.path.startswith(p) if p.endswith(".") else option.path == p for p in paths)
        for option in options
    )


def is_function(value: Value | None, *names: str) -> bool:
    """Return whether a value is the call of a function or a method of torch with such a name.

    `is_function(value, "softmax")` is true for `torch.softmax(x, 1)`, `F.softmax(x, 1)`,
    `x.softmax(1)` and `nn.Softmax(1)(x)` if "Softmax" is given as well.
    """
    if not isinstance(value, Call):
        return False
    if value.path == "()":
        made = strip(value.receiver)
        return isinstance(made, Call) and made.path.startswith("torch.") and made.name in names
    is_torch = value.is_method or value.path.startswith(("torch.", "torch_"))
    return is_torch and value.name in names


def tensor_of(call: Call) -> Value | None:
    """Return the first tensor that a function or a method of torch is given."""
    if call.is_method:
        return call.receiver
    return call.argument(0, "input")


def base_of(value: Value, names: Container[str]) -> Value | None:
    """Return the tensor of which a value is a range, a view or a copy; None for other values.

    Args:
        value: of the script.
        names: of the functions, methods and attributes that make a view or a copy: "reshape".
    """
    match value:
        case Item(base=base, index=index):
            parts = index.elements if isinstance(index, Collection) else [index]
            is_range = all(isinstance(part, Operation) and part.operator == ":" for part in parts)
            return base if is_range else None
        case Call() if value.name in names:
            return tensor_of(value)
        case Attribute(base=base, name=name) if name in names:
            return base
    return None


def option_of(call: Call, name: str, position: int = 0) -> Value | None:
    """Return what a function or a method of torch is given after its first tensor.

    Args:
        call: of the function or the method.
        name: of the parameter: "dim" for `softmax(x, 1)` and `x.softmax(dim=1)`.
        position: among the arguments that follow the tensor.
    """
    return call.argument(position + (not call.is_method), name)


def is_without_grad(event: Event) -> bool:
    """Return whether an event is inside `torch.no_grad()` or `torch.inference_mode()`."""
    return any(last_name(context) in ("no_grad", "inference_mode") for context in event.contexts)


def describe(value: Value | None) -> str:
    """Return the source of a value for a message, shortened."""
    if isinstance(value, Unknown) and value.name:
        return value.name
    return describe_source(None if value is None else value.node)


_ARITHMETIC = frozenset("+ - * / **".split())
_COMPARING = frozenset("eq ne gt ge lt le isfinite isnan logical_not bool".split())
_KEEP_GRAPH = frozenset("mean sum clone float double cpu cuda to view reshape squeeze abs".split())


def is_derived_with_graph(value: Value | None, loss: Value | None) -> bool:
    """Return whether a value is a loss, or was computed from it or its terms with its graph.

    Args:
        value: of the script.
        loss: on which `backward` is called.
    """
    return any(_has_graph_of(value, term) for term in _terms_of(loss))


def _terms_of(loss: Value | None) -> Iterator[Value]:
    """Yield a loss and the losses that it is the sum of."""
    match loss:
        case None | Constant():
            return
        case Call(path=".scale", args=(inner,)):
            yield from _terms_of(inner)
        case Operation(operator=operator, operands=operands) if operator in _ARITHMETIC:
            yield loss
            for operand in operands[:1] if operator in ("/", "**") else operands:
                if not isinstance(operand, (Unknown, Attribute)):
                    yield from _terms_of(operand)
        case Call(path=path) if "." not in path and path != "()":
            return  # a number, such as `len(batch)`
        case Call() if _is_count(loss):
            return
        case _:
            yield loss


def _is_count(value: Value) -> bool:
    """Return whether a value counts what a condition chooses: `(labels != -100).sum()`."""
    while isinstance(value, Call) and value.is_method and value.receiver is not None:
        if value.name in _COMPARING:
            return True
        if value.name not in _KEEP_GRAPH | {"long", "int", "item", "count_nonzero"}:
            return False
        value = value.receiver
    return isinstance(value, Operation) and value.operator in COMPARISONS


def _has_graph_of(value: Value | None, loss: Value) -> bool:
    if is_same(value, loss):
        return True
    match value:
        case Operation(operator=operator, operands=operands) if operator in _ARITHMETIC:
            return any(_has_graph_of(operand, loss) for operand in operands)
        case Call(receiver=receiver) if value.is_method and value.name in _KEEP_GRAPH:
            return _has_graph_of(receiver, loss)
        case Call() if value.path.startswith("torch.") and value.name in _KEEP_GRAPH:
            return _has_graph_of(tensor_of(value), loss)
        case Call(path="horovod.torch.allreduce"):  # has a backward pass, unlike torch's
            return _has_graph_of(value.argument(0, "tensor"), loss)
    return False
