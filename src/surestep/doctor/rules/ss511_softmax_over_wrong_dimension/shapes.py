"""What the source shows of the shapes of tensors."""

from __future__ import annotations

from surestep.doctor.source.training import is_made_by, options_of, tensor_of
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Element,
    Item,
    Operation,
    Unknown,
    Value,
)

_MAX_DEPTH = 20
_CREATIONS = frozenset("randn rand zeros ones empty full randint".split())
# Modules and functions whose result has as many dimensions as what they are given.
_KEEPS_RANK = frozenset(
    "Linear ReLU LeakyReLU GELU ELU SiLU Tanh Sigmoid Softmax LogSoftmax Dropout BatchNorm1d "
    "BatchNorm2d LayerNorm Sequential relu leaky_relu gelu elu silu tanh sigmoid softmax "
    "log_softmax dropout to float double half cuda cpu clone detach contiguous".split()
)


def has_batch(value: Value | None) -> bool:
    """Return whether a tensor certainly has two dimensions or more, the first for the samples."""
    return _has_batch(value, 0)


def _has_batch(value: Value | None, depth: int) -> bool:
    options = (value,) if isinstance(value, Call) else options_of(value)
    return (
        bool(options)
        and depth < _MAX_DEPTH
        and all(_one_has_batch(option, depth + 1) for option in options)
    )


def _one_has_batch(value: Value, depth: int) -> bool:
    if isinstance(value, Item):
        return is_loader_element(value.base)
    if isinstance(value, Operation) and value.operator in ("+", "-", "*", "/"):
        return any(_has_batch(operand, depth) for operand in value.operands)
    if not isinstance(value, Call):
        return is_loader_element(value)
    if value.result is not None:
        return _has_batch(value.result, depth)
    if value.path == "()":
        made = options_of(value.receiver)
        names = {option.name if isinstance(option, Call) else "" for option in made}
        return names <= _KEEPS_RANK and _has_batch(value.argument(0, "input"), depth)
    if value.name in ("view", "reshape") and value.is_method:
        return len(_sizes(value.args)) >= 2
    if value.name == "flatten":
        start = value.argument(0 if value.is_method else 1, "start_dim")
        return isinstance(start, Constant) and start.value == 1
    if value.path.startswith("torch.") and value.name in _CREATIONS:
        return any(len(_sizes(args)) >= 2 for args in (value.args, value.args[-1:]))
    return value.name in _KEEPS_RANK and _has_batch(tensor_of(value), depth)


def is_loader_element(value: Value | None) -> bool:
    """Return whether a value is a batch of a DataLoader, by how it was made or by its name."""
    if not isinstance(value, Element):
        return False
    if is_made_by(value.of, "torch.utils.data.DataLoader"):
        loaders = [option for option in options_of(value.of) if isinstance(option, Call)]
        sizes = [loader.argument(1, "batch_size") for loader in loaders]
        return not any(isinstance(size, Constant) and size.value is None for size in sizes)
    return isinstance(value.of, Unknown) and "loader" in value.of.name.lower()


def _sizes(args: tuple[Value, ...]) -> tuple[Value, ...]:
    if len(args) == 1 and isinstance(args[0], Collection):
        return tuple(args[0].elements)
    return args
