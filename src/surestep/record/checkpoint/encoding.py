"""Encode what JSON and safetensors cannot hold directly, for `state.json` and the tensor files.

A dict with one of these keys represents a value: `{"$tensor": NAME}`, `{"$numpy": NAME}`,
`{"$float": "inf"}`, `{"$tuple": [...]}`, `{"$sparse": LAYOUT, "size": [...], "parts": [NAMES]}`.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.distributed.shards import TensorShard
from surestep.record.checkpoint.manifest import RECORD, checkpoint_error

CALLBACK_STATES = "callback_states"
_INDICES = {  # by layout: the methods that return the indices
    "sparse_coo": ("indices",),
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}


def encode(key: str, value: Any, tensors: dict[str, Tensor], lost: list[str] | None = None) -> Any:
    """Return a value as JSON holds it, and add its tensors to `tensors`, not copied.

    Args:
        key: where the value is; its tensors are named after it.
        value: numbers, text, None, tensors, NumPy numbers and arrays (which are copied), lists,
            tuples, and dicts with text as keys.
        tensors: receives the tensors.
        lost: receives the key and type of what has no form; None raises an error.

    Raises:
        CheckpointError: something has no form in JSON or safetensors.
    """
    what, advice = type(value).__name__, ""
    if isinstance(value, Tensor):
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        if layout == "strided":
            tensors[key] = value
            return {"$tensor": key}
        if layout in _INDICES:
            plain = value.detach().coalesce() if layout == "sparse_coo" else value.detach()
            methods = (*_INDICES[layout], "values")
            parts = {f"{key}/${method}": getattr(plain, method)() for method in methods}
            tensors |= parts
            return {"$sparse": layout, "size": list(plain.shape), "parts": list(parts)}
        what, advice = f"tensor of the layout {layout}", " For a buffer, set persistent=False."
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
        try:
            tensors[key] = torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))
            return {"$numpy": key}
        except TypeError:  # torch has no such dtype
            what = f"NumPy value of the dtype {value.dtype}"
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {name: encode(f"{key}/{name}", part, tensors, lost) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        items = [encode(f"{key}/{i}", part, tensors, lost) for i, part in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if type(value) is float and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        what = "dict whose keys are not text"
    if lost is not None:
        lost.append(f"{key}: {what}")
        return {"$lost": what}
    raise CheckpointError(
        f"{key!r} is a {what}, which has no form in JSON or safetensors. Keep it as a number, "
        f"text, a dense or sparse tensor, or lists and dicts of those.{advice}"
    )


def decode(path: Path, value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that was encoded; its tensors are taken out of `tensors`.

    Raises:
        CorruptCheckpointError: a tensor is missing, or the value is not one that `encode` returns.
    """
    try:
        return decode_value(value, tensors)
    except KeyError as error:
        raise checkpoint_error(path, RECORD, f"it lacks the tensor {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise checkpoint_error(path, RECORD, error) from error


def decode_value(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that was encoded, as `decode` does.

    Raises:
        KeyError: with the name of a tensor that is missing.
        TypeError, ValueError, RuntimeError: the value is not one that `encode` returns.
    """
    if isinstance(value, list):
        return [decode_value(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$tensor": name, **rest} if not rest:
            return tensors.pop(str(name))
        case {"$numpy": name, **rest} if not rest:
            return tensors.pop(str(name)).numpy()[()]  # a number if it has no dimension
        case {"$float": text, **rest} if not rest:
            return float(text)
        case {"$tuple": parts, **rest} if not rest:
            return tuple(decode_value(part, tensors) for part in parts)
        case {"$sparse": layout, "size": size, "parts": names, **rest} if not rest:
            parts = [tensors.pop(str(name)) for name in names]
            if layout not in _INDICES or len(parts) != len(_INDICES[layout]) + 1:
                raise ValueError("a sparse tensor has no known layout")
            make = "sparse_coo_tensor" if layout == "sparse_coo" else f"{layout}_tensor"
            return getattr(torch, make)(*parts, size=size, check_invariants=True)
    return {name: decode_value(part, tensors) for name, part in value.items()}


def collect_shards(shards: Iterable[tuple[str, TensorShard]]) -> dict[str, TensorShard]:
    """Copy what this rank writes to the host, one shard at a time."""
    found = {}
    for name, shard in shards:
        local = shard.local.detach()
        local = local.to("cpu", copy=True) if shard.writes else local.new_empty(0)
        found[name] = shard._replace(local=local)
    return found
