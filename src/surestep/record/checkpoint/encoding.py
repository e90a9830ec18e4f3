"""What JSON and safetensors cannot hold directly, encoded: values, sparse tensors, callback states.

A checkpoint has JSON and dense tensors. JSON has neither tensors nor NumPy numbers nor infinity:
`{"$tensor": NAME}`, `{"$numpy": ...}` and `{"$float": "inf"}` replace them.
The values of a sparse tensor are saved as "NAME/$values", its indices as "NAME/$indices" (or the
names of its layout), and `{"$sparse": LAYOUT, "size": [...]}` is the extra state of that name.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.data.stream_resume import STREAM  # what becomes of it is said elsewhere
from surestep.engine.distributed.shards import (
    TensorShard,
)
from surestep.engine.state.state import State, Stateful
from surestep.record.checkpoint.optimizer_slots import TENSOR
from surestep.record.checkpoint.reader import CheckpointReader

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


_SPARSE = "$sparse"


_COMPRESSED = {  # the methods that return the two kinds of indices
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}


_INDICES = {"sparse_coo": ("indices",), **_COMPRESSED}


def is_sparse(tensor: Tensor) -> bool:
    """Say whether a tensor is of a layout that `take_apart` knows."""
    return layout_of(tensor) in _INDICES


def layout_of(tensor: Tensor) -> str:
    """Return the layout of a tensor in torch's word, such as "strided"."""
    return str(tensor.layout).removeprefix("torch.")


def take_apart(name: str, tensor: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the dense tensors of a sparse one, by name, and what else there is to it."""
    layout = layout_of(tensor)
    plain = tensor.detach().coalesce() if layout == "sparse_coo" else tensor.detach()
    parts = {f"{name}/${each}": getattr(plain, each)() for each in (*_INDICES[layout], "values")}
    return parts, {_SPARSE: layout, "size": list(plain.shape)}


def put_together(
    tensors: dict[str, Tensor], extra: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors with the sparse ones among them, and the extra state without them.

    Raises:
        ValueError: a part is missing, or the parts make no tensor.
    """
    found, rest = dict(tensors), {}
    for name, about in extra.items():
        if not (isinstance(about, dict) and about.keys() == {_SPARSE, "size"}):
            rest[name] = about
            continue
        layout = about[_SPARSE]
        try:
            parts = [found.pop(f"{name}/${each}") for each in (*_INDICES[layout], "values")]
            make: Any = torch.sparse_coo_tensor
            if layout in _COMPRESSED:
                make = getattr(torch, f"{layout}_tensor")
            found[name] = make(*parts, size=about["size"], check_invariants=True)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"the sparse tensor {name} cannot be put together: {error}") from error
    return found, rest


KIND = "callback_states"


def encode_states(owners: Mapping[str, Stateful]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the states by name: tensors by "name/place", and the rest as JSON.

    Raises:
        CheckpointError: one has no plain form.
    """
    tensors: dict[str, Tensor] = {}
    try:
        return tensors, {
            name: encode(name, owner.state_dict(), tensors) for name, owner in owners.items()
        }
    except NoPlainForm as found:
        raise CheckpointError(
            f"The state that {found.key.split('/')[0]} declares has a {found.what} at "
            f"{found.key!r}, which has no form in JSON or safetensors. Let state_dict() return "
            "numbers, text, tensors, or lists and dicts of those."
        ) from found


def decode_states(found: CheckpointReader) -> dict[str, Any]:
    """Return the states in a checkpoint, by name; tuples are lists now.

    Raises:
        CheckpointError: it lacks a tensor.
    """
    tensors = found.tensors(KIND) if KIND in found.manifest.tensors else {}
    # Copied, since in the file they lie at any address.
    copied = {name: each.clone() for name, each in tensors.items()}
    record: Any = found.record.get(KIND) or {}
    try:
        return {name: decode(each, copied) for name, each in record.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{found.path} cannot be read: it lacks {error}.") from error


def unmatched_states(record: Mapping[str, Any], state: State) -> list[str]:
    """Say what declares a state here or in a checkpoint, and not in both."""
    saved, here = ({*each} - {STREAM} for each in (record.get(KIND) or {}, state.callback_states))
    return [
        *(
            f"The checkpoint has a state of {name}, which is not here now; the next one will not."
            for name in sorted(saved - here)
        ),
        *(
            f"{name} has no state in the checkpoint, and starts with its own."
            for name in sorted(here - saved)
        ),
    ]


def collect_shards(pieces: Iterable[tuple[str, TensorShard]]) -> dict[str, TensorShard]:
    """Take what a keeper yields, one after another: what this rank writes goes to the host."""
    found = {}
    for name, piece in pieces:
        local = piece.local.detach()
        local = local.to("cpu", copy=True) if piece.writes else local.new_empty(0)
        found[name] = piece._replace(local=local)
    return found


def _is_json(value: Any) -> bool:
    if value is None or type(value) in (bool, int, str):
        return True
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def as_json(name: str, value: Any) -> Any:
    """Return a value that JSON can hold unchanged.

    Raises:
        CheckpointError: JSON cannot hold it.
    """
    if not _is_json(value):
        raise CheckpointError(
            f"{name} is a {type(value).__name__}, which has no form in JSON or safetensors. Keep "
            "it as a tensor, a number, text, or lists and dicts of those."
        )
    return value
