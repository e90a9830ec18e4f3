"""An optimizer's state as tensors and JSON: what lies in lists is named by its place in them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

TENSOR = "$tensor"  # {"$tensor": "weight/old_dirs.0"} stands where that tensor stood


def flatten(
    key: str, value: Any, tensors: dict[str, Tensor], as_json: Callable[[str, Any], Any]
) -> Any:
    """Return a value with its tensors put into `tensors` and their names in their places.

    Args:
        key: of the value, "parameter/slot".
        value: a tensor, something that JSON holds, or lists and dicts of those.
        tensors: what to fill; the tensors themselves, not copies.
        as_json: returns what JSON can hold as it is, and raises for the rest.
    """
    if isinstance(value, Tensor):
        tensors[key] = value
        return {TENSOR: key}
    if isinstance(value, (list, tuple)):
        return [flatten(f"{key}.{i}", each, tensors, as_json) for i, each in enumerate(value)]
    if isinstance(value, Mapping):
        parts = {as_json(key, name): each for name, each in value.items()}
        return {n: flatten(f"{key}.{n}", each, tensors, as_json) for n, each in parts.items()}
    return as_json(key, value)


def restore(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `flatten` was given.

    Raises:
        KeyError: with the name of a tensor that is not there.
    """
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[str(value[TENSOR])]
        return {name: restore(each, tensors) for name, each in value.items()}
    if isinstance(value, list):
        return [restore(each, tensors) for each in value]
    return value


def names_in(value: Any) -> Iterator[str]:
    """Yield the names of the tensors that a flattened value has."""
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            yield str(value[TENSOR])
        else:
            for each in value.values():
                yield from names_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from names_in(each)
