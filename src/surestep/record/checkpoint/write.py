"""Write a checkpoint: a temporary folder, synced, then one rename."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from surestep.base.errors import CheckpointError
from surestep.engine.model.frozen import left_out
from surestep.engine.state import State
from surestep.record.checkpoint.slots import flatten
from surestep.record.files import DISK_HINT, dumps, sync

FORMAT = 2
_LEFT_OUT = ("params", "lr")  # the rate is a function of the steps taken, written before each


def save_checkpoint(folder: Path, state: State, *, cycle: int | None = None) -> Path:
    """Write the state as `folder/step-XXXXXXXX`; return its path.

    Args:
        folder: of the checkpoints.
        state: what is saved.
        cycle: the cycle of the schedule that ended here, from 1, so that it is kept.

    Raises:
        CheckpointError: the disk is full or cannot be written, or a part has no plain form.
    """
    final = folder / f"step-{state.place.step:08d}"
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write(temporary, state, cycle)
        _publish(temporary, final)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError):
            raise
        raise CheckpointError(
            f"{final} could not be written: {error.strerror or error}. The checkpoints before it "
            f"are as they were. {DISK_HINT}"
        ) from error
    return final


def _write(folder: Path, state: State, cycle: int | None) -> None:
    base = left_out(state) if state.base else {}
    kept = {name: v for name, v in state.model.state_dict().items() if name not in base}
    model, aliases, extra = _model_tensors(kept)
    optimizers = {
        name: _optimizer_state(name, each, state.model) for name, each in state.optimizers.items()
    }
    tensors = {key: value for found, _ in optimizers.values() for key, value in found.items()}
    contents = {
        "format": FORMAT,
        "place": state.place._asdict(),
        "counts": vars(state.counts),
        "standing": vars(state.standing),
        "plateau": vars(state.plateau),
        "cycle": cycle,
        "scaler": state.scaler.state_dict(),
        "metadata": state.metadata,
        "aliases": aliases,
        "extra": extra,
        "base": base,
        "optimizers": {name: record for name, (_, record) in optimizers.items()},
    }
    files = {"model": model, "optimizer": tensors}
    average = state.average
    if average is not None and average.updates(state.place.steps_taken):
        files["average"] = {
            name: each.detach().cpu().contiguous().clone() for name, each in average.tensors.items()
        }
    record = folder / "state.json"
    record.write_text(dumps(contents, indent=1) + "\n", encoding="utf-8")
    for name, content in files.items():
        path = folder / f"{name}.safetensors"
        try:
            save_file(content, path)
        except Exception as error:  # safetensors raises its own SafetensorError for a full disk
            raise OSError(0, str(error)) from error
        path.chmod(record.stat().st_mode)  # safetensors lets nobody but the owner read
        sync(path)
    sync(record)
    sync(folder)


def _publish(temporary: Path, final: Path) -> None:
    """Give the folder its name; one that already bears it makes way until then."""
    old = final.with_name(f".old-{final.name}-{os.getpid()}")
    if final.exists():
        final.rename(old)
    try:
        temporary.rename(final)
    except OSError:
        if old.exists():
            old.rename(final)
        raise
    sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _model_tensors(
    state_dict: dict[str, Any],
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, Any]]:
    """Return tensors by name, the names of tied ones, and extra state that is not a tensor."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    extra: dict[str, Any] = {}
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, value in state_dict.items():
        if not isinstance(value, Tensor):
            extra[name] = _as_json(name, value)
            continue
        key = (value.data_ptr(), value.shape, value.stride())
        if value.numel() and key in first:
            aliases[name] = first[key]
            continue
        first[key] = name
        tensors[name] = value.detach().cpu().contiguous().clone()
    return tensors, aliases, extra


def _optimizer_state(
    called: str, optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state: tensors by "optimizer/parameter/slot", and the rest."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for parameter, slots in optimizer.state.items():
        name = names[id(parameter)]
        for slot, value in slots.items():
            key = f"{called}/{name}/{slot}"
            flat = flatten(key, value, tensors, _as_json)
            if not isinstance(value, Tensor):
                values[key] = flat
    groups = [
        {
            "names": [names[id(parameter)] for parameter in group["params"]],
            "options": {k: v for k, v in group.items() if k not in _LEFT_OUT and _is_json(v)},
        }
        for group in optimizer.param_groups
    ]
    return tensors, {"class": type(optimizer).__name__, "values": values, "groups": groups}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _as_json(name: str, value: Any) -> Any:
    if not _is_json(value):
        raise CheckpointError(
            f"{name} is a {type(value).__name__}, which has no form in JSON or safetensors. Keep "
            "it as a tensor, a number, text, or lists and dicts of those."
        )
    return value
