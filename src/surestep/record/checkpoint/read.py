"""Read checkpoints: list them, load one into a state or a model."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.frozen import fingerprint
from surestep.engine.initial import some
from surestep.engine.schedule.plateau import Plateau
from surestep.engine.state import Counts, Place, Standing, State
from surestep.record.checkpoint.slots import names_in, restore
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
    metrics: dict[str, float]
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
        latest = {name: float(value) for name, value in standing["latest"].items()}
        measured: Literal["weights", "average"] = (
            "average" if standing.get("measured") == "average" else "weights"
        )
        metrics = latest if standing["latest_step"] == step else {}
        return Saved(step, metrics, path, measured, record.get("cycle"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error!r}.") from error


def load_checkpoint(path: Path, state: State) -> None:
    """Load a checkpoint into the state, in place.

    Raises:
        CheckpointError: unreadable, or it does not fit this model or optimizer; the state is then
            as it was.
    """
    record = read_record(path)
    try:
        place, counts = Place(**record["place"]), Counts(**record["counts"])
        latest = {name: float(value) for name, value in record["standing"]["latest"].items()}
        standing = Standing(**{**record["standing"], "latest": latest})
        plateau = Plateau(**record["plateau"])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} cannot be read: state.json: {error}.") from error
    weights = _fitting_weights(path, record, state.model, state.base)
    optimizer_states = _fitting_optimizer_states(path, record["optimizers"], state)
    if state.average is not None and state.average.updates(place.steps_taken):
        state.average.load(_tensors(path / "average.safetensors"), place.steps_taken)
    state.model.load_state_dict(weights)
    for name, optimizer_state in optimizer_states.items():
        _load_optimizer(state.optimizers[name], optimizer_state)
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
    record = read_record(path)
    weights = _fitting_weights(path, record, model)
    if average:
        averaged = _tensors(path / "average.safetensors")
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
    tensors = _tensors(path / "model.safetensors")
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


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error


def _fitting_optimizer_states(
    path: Path, records: dict[str, Any], state: State
) -> dict[str, dict[str, Any]]:
    """Return the state dict of each optimizer in a checkpoint, by the optimizer's name."""
    if records.keys() != state.optimizers.keys():
        raise CheckpointError(
            f"{path.name} holds the optimizers {', '.join(records)}, and here are "
            f"{', '.join(state.optimizers)}. Name them as when it was trained."
        )
    # Copied, since in the file they lie at any address, and the last bit of a dot product may hang
    # on that.
    tensors = {k: v.clone() for k, v in _tensors(path / "optimizer.safetensors").items()}
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    found = {}
    for called, optimizer in state.optimizers.items():
        own = {key: value for key, value in tensors.items() if key.startswith(f"{called}/")}
        slots: dict[str, dict[str, Any]] = {}
        for key, value in _slots(path, own, records[called]["values"]).items():
            name, _, slot = key.removeprefix(f"{called}/").rpartition("/")
            slots.setdefault(name, {})[slot] = value
        found[called] = _fitting_state(path, records[called], optimizer, (names, slots))
    return found


def _fitting_state(
    path: Path,
    record: dict[str, Any],
    optimizer: torch.optim.Optimizer,
    known: tuple[dict[int, str], dict[str, dict[str, Any]]],
) -> dict[str, Any]:
    """Return an optimizer's state dict, which a checkpoint keys by name and torch by index."""
    names, by_name = known
    if record.get("class") != type(optimizer).__name__:
        raise CheckpointError(
            f"{path.name} holds the state of {record.get('class')}, and the optimizer here is "
            f"{type(optimizer).__name__}. Use the one it was trained with."
        )
    options = {name: each["options"] for each in record["groups"] for name in each["names"]}
    plain = optimizer.state_dict()
    plain["state"] = {}
    for group, described in zip(optimizer.param_groups, plain["param_groups"], strict=True):
        for parameter, index in zip(group["params"], described["params"], strict=True):
            name = names[id(parameter)]
            if name not in options:
                raise CheckpointError(f"{path.name} has no optimizer state for {name}.")
            described.update(_typed_like(described, options[name]))
            if name in by_name:
                plain["state"][index] = _laid_out_like(parameter, by_name[name])
    return plain


def _slots(path: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> dict[str, Any]:
    """Return the slots of an optimizer, those with tensors in lists put together again."""
    try:
        rest = {key: restore(value, tensors) for key, value in values.items()}
    except KeyError as error:
        raise CheckpointError(f"{path} cannot be read: it lacks the tensor {error}.") from error
    inner = {name for value in values.values() for name in names_in(value)}
    return {**{key: value for key, value in tensors.items() if key not in inner}, **rest}


def _load_optimizer(optimizer: torch.optim.Optimizer, loaded: dict[str, Any]) -> None:
    """Load the state, each tensor in the type that it had.

    torch casts to the parameter's type what it knows no better, even what it made in another one:
    NAdam's product of momenta is fp32 beside a weight in fp64.
    """
    optimizer.load_state_dict(loaded)
    by_index = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    for index, slots in loaded["state"].items():
        now = optimizer.state[by_index[index]]
        for slot, value in slots.items():
            if isinstance(value, Tensor) and now[slot].dtype != value.dtype:
                now[slot] = value.to(now[slot].device)


def _laid_out_like(parameter: Tensor, slots: dict[str, Any]) -> dict[str, Any]:
    """Return state whose tensors lie in memory as the parameter does (channels last, say).

    A fused kernel walks parameter, gradient and state side by side, whatever their strides.
    """
    return {
        slot: torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for slot, value in slots.items()
    }


def _typed_like(now: dict[str, Any], loaded: dict[str, Any]) -> dict[str, Any]:
    """Return loaded options with tuples where tuples stood, which JSON has not."""
    return {
        name: tuple(value) if isinstance(now.get(name), tuple) else value
        for name, value in loaded.items()
    }
