"""Read checkpoints: list them, load one into a state or a model."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.state import Counts, Place, Standing, State
from surestep.record.checkpoint.write import FORMAT

_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk: its step, the metrics at that step, its folder."""

    step: int
    metrics: dict[str, float]
    path: Path


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
        CheckpointError: unreadable, or from a newer surestep.
    """
    try:
        record = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = int(record["format"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error}.") from error
    if version > FORMAT:
        raise CheckpointError(
            f"{path} has format {version}, and this surestep reads up to {FORMAT}. Install a newer "
            "one: pip install -U surestep."
        )
    assert isinstance(record, dict)
    return record


def saved(path: Path) -> Saved:
    """Return step and metrics of a checkpoint."""
    record = read_record(path)
    latest = record["standing"]["latest"]
    return Saved(record["place"]["step"], {k: float(v) for k, v in latest.items()}, path)


def load_checkpoint(path: Path, state: State) -> None:
    """Load a checkpoint into the state, in place.

    Raises:
        CheckpointError: unreadable, or it does not fit this model or optimizer.
    """
    record = read_record(path)
    load_model(path, state.model)
    _load_optimizer(path, record["optimizer"], state)
    if record["scaler"]:
        state.scaler.load_state_dict(record["scaler"])
    state.place = Place(**record["place"])
    state.counts = Counts(**record["counts"])
    standing = record["standing"]
    standing["latest"] = {name: float(value) for name, value in standing["latest"].items()}
    state.standing = Standing(**standing)
    state.metadata = record["metadata"]


def load_model(path: Path, model: nn.Module) -> None:
    """Load the weights and buffers of a checkpoint into a model, in place.

    Raises:
        CheckpointError: unreadable, or names or shapes differ; nothing is loaded then.
    """
    record = read_record(path)
    tensors = _tensors(path / "model.safetensors")
    tensors |= {name: tensors[first] for name, first in record["aliases"].items()}
    own = {name: v for name, v in model.state_dict().items() if isinstance(v, Tensor)}
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
    model.load_state_dict({**tensors, **record["extra"]})


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error


def _load_optimizer(path: Path, record: dict[str, Any], state: State) -> None:
    """Put the optimizer's state back by parameter name, through the optimizer's own loader."""
    optimizer = state.optimizer
    if record["class"] != type(optimizer).__name__:
        raise CheckpointError(
            f"{path.name} holds the state of {record['class']}, and the optimizer here is "
            f"{type(optimizer).__name__}. Use the one it was trained with."
        )
    by_name: dict[str, dict[str, Any]] = {}
    everything = {**_tensors(path / "optimizer.safetensors"), **record["values"]}
    for key, value in everything.items():
        name, _, slot = key.rpartition("/")
        by_name.setdefault(name, {})[slot] = value
    options = {name: each["options"] for each in record["groups"] for name in each["names"]}
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    plain = optimizer.state_dict()
    plain["state"] = {}
    for group, described in zip(optimizer.param_groups, plain["param_groups"], strict=True):
        for parameter, index in zip(group["params"], described["params"], strict=True):
            name = names[id(parameter)]
            if name not in options:
                raise CheckpointError(f"{path.name} has no optimizer state for {name}.")
            described.update(_typed_like(described, options[name]))
            if name in by_name:
                plain["state"][index] = by_name[name]
    optimizer.load_state_dict(plain)


def _typed_like(now: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """Return loaded options with tuples where tuples stood, which JSON has not."""
    return {
        name: tuple(value) if isinstance(now.get(name), tuple) else value
        for name, value in loaded.items()
    }
