"""The signature of a model: name, dtype and shape of what it takes and returns, in one batch."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from surestep.engine.batch import MicroBatch

FREE = -1  # the size of a dimension that is the number of samples


def describe_model_io(model: nn.Module, micro: MicroBatch, outputs: Any) -> dict[str, Any]:
    """Return the inputs, in the order of `forward`, and the outputs of a model, as JSON.

    Each has a name, a dtype and a shape, in which FREE is the number of samples. A member of a
    nested value is named like "hidden.0". Of a value that is not a tensor the dtype is
    like "python int".
    """
    parameters = parameter_names(model)
    positional = [*parameters, *(f"input.{i}" for i in range(len(parameters), len(micro.args)))]
    inputs = dict(zip(positional, micro.args, strict=False)) | dict(micro.kwargs)
    order = {name: place for place, name in enumerate(parameters)}
    names = sorted(inputs, key=lambda name: order.get(name, len(order)))
    leaves = [leaf for name in names for leaf in _leaves(name, inputs[name])]
    is_named = _members(outputs) is not None and not isinstance(outputs, Sequence)
    found = list(_leaves("" if is_named else "output", outputs))
    return {
        "inputs": [_describe(name, value, micro.rows) for name, value in leaves],
        "outputs": [_describe(name, value, micro.rows) for name, value in found],
    }


def parameter_names(model: nn.Module) -> list[str]:
    """Return the names of the positional parameters of `forward`; empty if they are not known."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    members = _members(value)
    if members is None:
        if value is not None:
            yield name, value
        return
    for key, member in members.items():
        yield from _leaves(f"{name}.{key}".lstrip("."), member)


def _members(value: Any) -> Mapping[Any, Any] | None:
    """Return what a container holds, by key; None if it is not one."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def _describe(name: str, value: Any, samples: int) -> dict[str, Any]:
    if not isinstance(value, Tensor):
        return {"name": name, "dtype": f"python {type(value).__name__}", "shape": []}
    shape = list(value.shape)
    if shape and shape[0] == samples:
        shape[0] = FREE
    return {"name": name, "dtype": str(value.dtype).removeprefix("torch."), "shape": shape}
