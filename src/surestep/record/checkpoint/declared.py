"""What callbacks and others declare as their state: as JSON and tensors, and back."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.data.resume import STREAM  # what becomes of it is said elsewhere
from surestep.engine.state import State, Stateful
from surestep.record.checkpoint.opened import Opened
from surestep.record.checkpoint.slots import TENSOR, restore

KIND = "declared"
_NUMBER = "$float"  # {"$float": "inf"}: JSON has no number that is not finite


def described(owners: Mapping[str, Stateful]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the states by name: tensors by "name/place", and the rest as JSON.

    Raises:
        CheckpointError: one has no plain form.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, {
        name: _plain(name, owner.state_dict(), tensors) for name, owner in owners.items()
    }


def _plain(key: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[key] = value
        return {TENSOR: key}
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {name: _plain(f"{key}/{name}", each, tensors) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(f"{key}/{i}", each, tensors) for i, each in enumerate(value)]
    if type(value) is float and not math.isfinite(value):
        return {_NUMBER: str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    what = "dict whose keys are not text" if isinstance(value, Mapping) else type(value).__name__
    raise CheckpointError(
        f"The state that {key.split('/')[0]} declares has a {what} at {key!r}, which has no form "
        "in JSON or safetensors. Let state_dict() return numbers, text, tensors, or lists and "
        "dicts of those."
    )


def restored(found: Opened) -> dict[str, Any]:
    """Return the states in a checkpoint, by name; tuples are lists now.

    Raises:
        CheckpointError: it lacks a tensor.
    """
    tensors = found.tensors(KIND) if KIND in found.manifest.tensors else {}
    # Copied, since in the file they lie at any address.
    copied = {name: each.clone() for name, each in tensors.items()}
    record: Any = found.record.get(KIND) or {}
    try:
        return {name: _numbers(restore(each, copied)) for name, each in record.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{found.path} cannot be read: it lacks {error}.") from error


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_NUMBER}:
            return float(value[_NUMBER])
        return {name: _numbers(each) for name, each in value.items()}
    return [_numbers(each) for each in value] if isinstance(value, list) else value


def strangers(record: Mapping[str, Any], state: State) -> list[str]:
    """Say what declares a state here or in a checkpoint, and not in both."""
    saved, here = ({*each} - {STREAM} for each in (record.get(KIND) or {}, state.declared))
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
