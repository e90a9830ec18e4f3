"""Read weights to start from: safetensors, torch's own files without pickle's code, run folders."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from surestep.base.errors import CheckpointError, RunError
from surestep.engine.model.load_weights import load_matching_weights
from surestep.engine.task.init_weights import (
    InitReport,
    InitWeights,
    Source,
    as_init,
    summarize_names,
)
from surestep.record.checkpoint.manifest import MANIFEST
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.io import parse_json, read_regular
from surestep.record.run import Run

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
NESTED = ("state_dict", "model_state_dict", "model", "module", "net")
_FOLDERS = (
    ("model.safetensors.index.json", "model.safetensors"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin"),
)


def load_init_weights(model: nn.Module, init: Source | None) -> InitReport | None:
    """Load the weights that a Task starts from into its model; say what became of each tensor.

    None where the Task names none.

    Raises:
        CheckpointError: they cannot be read, or do not fit the model.
    """
    if init is None:
        return None
    init = as_init(init)
    if isinstance(init.weights, Mapping):
        return load_matching_weights(model, _state_dict(init.weights, init.name), init)
    path = Path(init.weights).expanduser()
    path = _best(path) if (path / "checkpoints").is_dir() else path
    if (path / MANIFEST).is_file() and not (path / "model.safetensors").is_file():
        return _of_ranks(model, open_checkpoint(path), init)
    files = _files(path)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _read(file)
    started = load_matching_weights(model, tensors, init)
    started.files.update({str(file): _sha256(file) for file in files})
    return started


def _of_ranks(model: nn.Module, found: CheckpointReader, init: InitWeights) -> InitReport:
    """Load a checkpoint in which many ranks wrote the model, each its boxes of it."""
    started = load_matching_weights(model, found.tensors("model"), init)
    files = {each.file for stored in found.entries("model").values() for each in stored.slices}
    known = {str(found.path / name): found.manifest.files[name].sha256 for name in sorted(files)}
    started.files.update(known)
    return started


def _files(path: Path) -> list[Path]:
    """Return the files that hold the weights of a file, a model's folder or a run."""
    if path.is_file():
        if path.name.endswith(".index.json"):
            return _shards(path)
        return [path]
    if not path.is_dir():
        raise CheckpointError(f"init={str(path)!r} is not there. Check the path.")
    for index, whole in _FOLDERS:
        if (path / whole).is_file():
            return [path / whole]
        if (path / index).is_file():
            return _shards(path / index)
    raise CheckpointError(
        f"init={str(path)!r} is a folder without weights: it has none of "
        f"{', '.join(name for each in _FOLDERS for name in reversed(each))}. Give the file."
    )


def _best(folder: Path) -> Path:
    try:
        return Run(folder).choose("best").saved.path
    except (RunError, CheckpointError) as error:
        raise CheckpointError(f"init={str(folder)!r}: {error}") from error


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names; all of them lie beside it."""
    try:
        names = set(parse_json(read_regular(index))["weight_map"].values())
        files = [index.parent / name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} cannot be read: {error!r}.") from error
    for file in files:
        if file.parent != index.parent or file.name in ("", "..") or not file.is_file():
            raise CheckpointError(f"{index} names {file}, which is no file beside it.")
    return files


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged or no safetensors file: {error}. Fetch or write it again."
            ) from error
    if path.suffix in TORCH_FILES:
        return _state_dict(_read_torch(path), str(path))
    raise CheckpointError(
        f"init={str(path)!r} is of a kind that is not known. Known: .safetensors, "
        f"{', '.join(TORCH_FILES)}, a folder of them, or a run folder."
    )


def _read_torch(path: Path) -> Any:
    """Read a file of torch.save, which may hold tensors and plain values but run no code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its unpickler raises whatever a damaged file makes of it
        needed = re.search(r"GLOBAL ([\w.]+)", str(error))
        if needed is not None:
            raise CheckpointError(
                f"{path} needs {needed[1]}, and reading more than tensors would run code from the "
                "file. Where you trust it, write its tensors alone: "
                "torch.save(model.state_dict(), 'weights.pt'), or use safetensors."
            ) from error
        raise CheckpointError(
            f"{path} is damaged or no file of torch.save ({type(error).__name__}). Fetch or write "
            "it again."
        ) from error


def _state_dict(found: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors by name of what a file holds; they may lie one or two levels deep."""
    while isinstance(found, Mapping):
        inner = next((each for each in NESTED if isinstance(found.get(each), Mapping)), None)
        if inner is None:
            break
        found = found[inner]
    named = found if isinstance(found, Mapping) else {}
    tensors = {str(each): value for each, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        what = summarize_names(sorted(map(str, named))) or f"a {type(found).__name__}"
        raise CheckpointError(
            f"{name} has no tensors by name: it holds {what}. A state dict is taken, or one under "
            f"{', '.join(NESTED)}."
        )
    return tensors


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
