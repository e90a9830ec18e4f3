"""Read checkpoints: list them, load one into a state or a model."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.metrics import Value
from surestep.engine.model.frozen import fingerprint
from surestep.engine.model.initial import some
from surestep.engine.optim.names import opened
from surestep.engine.schedule.plateau import Plateau
from surestep.engine.state import Counts, Place, Standing, State
from surestep.record.checkpoint.optimizers import fitting_states, load_optimizer, read_tensors
from surestep.record.checkpoint.write import FORMAT

_KEYS = (
    *("place", "counts", "standing", "plateau", "scaler", "metadata", "aliases", "extra"),
    "optimizers",
)
_NONE: Mapping[str, str] = {}
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk: its step, the metrics measured at that very step, its folder.

    Attributes:
        measured: whose metrics they are: the weights', or their average's.
        cycle: the cycle of the schedule that ended there, from 1, where those are saved.
    """

    step: int
    metrics: dict[str, Value]
    path: Path
    measured: Literal["weights", "average"] = "weights"
    cycle: int | None = None

    @property
    def has_average(self) -> bool:
        """Whether it holds averaged weights beside the others."""
        return (self.path / "average.safetensors").is_file()


def list_checkpoints(folder: Path) -> list[Path]:
    """List the published checkpoints, oldest first, by step."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _match(path))]
    return [path for _, path in sorted(found)]


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name) if path.is_dir() else None


def read_record(path: Path) -> dict[str, Any]:
    """Read what a checkpoint holds besides tensors.

    Raises:
        CheckpointError: unreadable, not whole, or of another surestep's format.
    """
    try:
        record = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = int(record["format"])
        lacks = [key for key in _KEYS if not isinstance(record.get(key), dict)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error!r}.") from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this surestep reads up to {FORMAT}. Install a newer "
            "one: pip install -U surestep."
        )
    if version < FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this surestep reads format {FORMAT}. Go on with the "
            "surestep that wrote it (its version is in environment.json), or start anew."
        )
    if lacks:
        raise CheckpointError(f"{path} cannot be read: state.json lacks {', '.join(lacks)}.")
    assert isinstance(record, dict)
    return record


def saved(path: Path) -> Saved:
    """Return step and metrics of a checkpoint.

    Raises:
        CheckpointError: unreadable.
    """
    record = read_record(path)
    try:
        standing, step = record["standing"], int(record["place"]["step"])
        latest = _values(standing["latest"])
        measured: Literal["weights", "average"] = (
            "average" if standing.get("measured") == "average" else "weights"
        )
        metrics = latest if standing["latest_step"] == step else {}
        return Saved(step, metrics, path, measured, record.get("cycle"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error!r}.") from error


def _values(latest: Mapping[str, Any]) -> dict[str, Value]:
    """Return metrics as they were measured: JSON has words for what is not finite."""
    return {name: _value(value) for name, value in latest.items()}


def _value(value: Any) -> Value:
    return [_value(each) for each in value] if isinstance(value, list) else float(value)


def load_checkpoint(path: Path, state: State) -> None:
    """Load a checkpoint into the state, in place.

    Raises:
        CheckpointError: unreadable, or it does not fit this model or optimizer; the state is then
            as it was.
    """
    record = read_record(path)
    try:
        place, counts = Place(**record["place"]), Counts(**record["counts"])
        latest = _values(record["standing"]["latest"])
        standing = Standing(**{**record["standing"], "latest": latest})
        plateau = Plateau(**record["plateau"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error}.") from error
    weights = _fitting_weights(path, record, state.model, state.base)
    optimizer_states = fitting_states(path, record["optimizers"], state)
    if state.average is not None and state.average.updates(place.steps_taken):
        state.average.load(read_tensors(path / "average.safetensors"), place.steps_taken)
    state.model.load_state_dict(weights)
    for name, optimizer_state in optimizer_states.items():
        load_optimizer(state.optimizers[name], optimizer_state)
    if record["scaler"]:
        state.scaler.load_state_dict(record["scaler"])
    state.place, state.counts, state.standing = place, counts, standing
    vars(state.plateau).update(vars(plateau))  # in place: the rate looks at it
    state.metadata = record["metadata"]


def load_model(path: Path, model: nn.Module, *, average: bool = False) -> None:
    """Load the weights and buffers of a checkpoint into a model, in place.

    Args:
        path: the checkpoint's folder.
        model: of the same build.
        average: load the averaged weights over the others.

    Raises:
        CheckpointError: unreadable, or names or shapes differ; nothing is loaded then.
    """
    model, record = opened(model), read_record(path)
    weights = _fitting_weights(path, record, model)
    if average:
        averaged = read_tensors(path / "average.safetensors")
        weights |= averaged
        weights |= {name: averaged[of] for name, of in record["aliases"].items() if of in averaged}
    model.load_state_dict(weights)


def leaves_out(path: Path) -> bool:
    """Say whether a checkpoint lacks frozen parameters, which the model must have already.

    Raises:
        CheckpointError: unreadable.
    """
    return bool(read_record(path).get("base"))


def _fitting_weights(
    path: Path, record: dict[str, Any], model: nn.Module, known: Mapping[str, str] = _NONE
) -> dict[str, Any]:
    """Return the state dict in a checkpoint, which fits the model.

    Args:
        path: of the checkpoint.
        record: what it holds besides tensors.
        model: has what the checkpoint leaves out.
        known: fingerprints of the model's tensors, where somebody has taken them.
    """
    tensors = read_tensors(path / "model.safetensors")
    try:
        tensors |= {name: tensors[first] for name, first in record["aliases"].items()}
    except KeyError as error:
        raise CheckpointError(f"{path} cannot be read: it lacks the tensor {error}.") from error
    own = {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}
    tensors |= _base(path, record.get("base") or {}, own, known)
    for name, value in own.items():
        if name in tensors and tensors[name].shape != value.shape:
            raise CheckpointError(
                f"{name} is {tuple(tensors[name].shape)} in {path.name} but {tuple(value.shape)} "
                "here. Build the model with the sizes it was trained with."
            )
    missing, foreign = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or foreign:
        raise CheckpointError(
            f"{path.name} is of another model: it lacks {missing or 'nothing'} and has "
            f"{foreign or 'nothing'} besides. Build the model that was trained."
        )
    return {**tensors, **record["extra"]}


def _base(
    path: Path, base: Mapping[str, str], own: Mapping[str, Tensor], known: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return the model's own tensors for those that the checkpoint leaves out, proven the same."""
    other = [
        name
        for name, sha in base.items()
        if name in own and sha != (known.get(name) or fingerprint(own[name]))
    ]
    if other:
        raise CheckpointError(
            f"{path.name} holds what was trained on a frozen base, and the base here is another: "
            f"{some(other, 3)}. Build it as when it was trained: the same Task(init=...), or the "
            "same weights in the function that builds the model."
        )
    return {name: own[name] for name in base if name in own}
