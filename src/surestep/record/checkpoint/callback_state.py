"""What callbacks and others declare as their state: as JSON and tensors, and back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from surestep.base.errors import CheckpointError
from surestep.engine.data.stream_resume import STREAM  # what becomes of it is said elsewhere
from surestep.engine.state.state import State, Stateful
from surestep.record.checkpoint.plain import NoPlainForm, decode, encode
from surestep.record.checkpoint.reader import CheckpointReader

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
