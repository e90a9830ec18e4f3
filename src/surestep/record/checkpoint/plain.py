"""Values of others as JSON and tensors, and back: what callbacks and optimizers keep.

JSON has neither tensors nor numpy numbers nor infinity: `{"$tensor": NAME}`, `{"$numpy": ...}` and
`{"$float": "inf"}` stand in their places.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surestep.record.checkpoint.optimizer_slots import TENSOR

_NUMBER, _NUMPY = "$float", "$numpy"


class NoPlainForm(Exception):
    """A value has no form in JSON or safetensors; `key` is its place and `what` its kind."""

    def __init__(self, key: str, what: str) -> None:
        super().__init__(f"a {what} at {key!r}")
        self.key, self.what = key, what


def encode(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON holds it, and put its tensors into `tensors`.

    Args:
        key: the place of the value; tensors are named after it.
        value: numbers, text, None, tensors, numpy numbers and arrays, or lists and dicts of those.
        tensors: receives the tensors themselves; numpy arrays are copied.

    Raises:
        NoPlainForm: anything else.
    """
    if isinstance(value, Tensor):
        tensors[key] = value
        return {TENSOR: key}
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            tensors[key] = torch.from_numpy(np.array(value))
        except TypeError:
            raise NoPlainForm(key, f"numpy value of {value.dtype}") from None
        return {_NUMPY: {TENSOR: key}}
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {name: encode(f"{key}/{name}", each, tensors) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(f"{key}/{i}", each, tensors) for i, each in enumerate(value)]
    if type(value) is float and not math.isfinite(value):
        return {_NUMBER: str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    what = "dict whose keys are not text" if isinstance(value, Mapping) else type(value).__name__
    raise NoPlainForm(key, what)


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `encode` was given; tuples are lists.

    Raises:
        KeyError: with the name of a tensor that is not there.
        TypeError, ValueError: it is not what `encode` returns.
    """
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[str(value[TENSOR])]
        if value.keys() == {_NUMBER}:
            return float(value[_NUMBER])
        if value.keys() == {_NUMPY}:
            return tensors[str(value[_NUMPY][TENSOR])].numpy()[()]  # of no dimension, a number
        return {name: decode(each, tensors) for name, each in value.items()}
    return [decode(each, tensors) for each in value] if isinstance(value, list) else value
