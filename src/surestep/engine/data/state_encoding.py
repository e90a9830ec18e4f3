"""A state of the user's own as plain parts: what JSON holds, and tensors; and back.

The parts are copies, so what is packed stays as it was while its owner goes on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

# How what JSON does not have is said: {"$tuple": [1, 2]}. Tuples matter: random.setstate wants one.
TUPLE, PAIRS, ARRAY = "$tuple", "$pairs", "$array"


def encode_state(value: Any) -> Any:
    """Return a copy of numbers, text, tensors, arrays, or lists, tuples and dicts of those.

    Raises:
        TypeError: with the kind of what has no such form.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return {ARRAY: torch.from_numpy(value.copy())}
    if isinstance(value, np.generic):
        return encode_state(value.item())
    if isinstance(value, Mapping):
        if all(type(name) is str and not name.startswith("$") for name in value):
            return {name: encode_state(each) for name, each in value.items()}
        return {PAIRS: [[encode_state(name), encode_state(each)] for name, each in value.items()]}
    if type(value) is tuple:
        return {TUPLE: [encode_state(each) for each in value]}
    if isinstance(value, list):
        return [encode_state(each) for each in value]
    raise TypeError(type(value).__name__)


def decode_state(value: Any) -> Any:
    """Return a copy of what was packed.

    Raises:
        TypeError, ValueError: it was not packed so.
    """
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [decode_state(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {TUPLE}:
        return tuple(decode_state(each) for each in value[TUPLE])
    if value.keys() == {ARRAY}:
        return torch.as_tensor(value[ARRAY]).numpy().copy()
    if value.keys() == {PAIRS}:
        return {decode_state(name): decode_state(each) for name, each in value[PAIRS]}
    return {name: decode_state(each) for name, each in value.items()}
