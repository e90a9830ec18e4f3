"""Read weights to start from: safetensors, torch files without pickled code, checkpoints, runs."""

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
from surestep.engine.task.init_weights import InitReport, Source, as_init, summarize_names
from surestep.record.checkpoint.manifest import MANIFEST
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.io import parse_json, read_regular
from surestep.record.run import Run

TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt")
NESTED = ("state_dict", "model_state_dict", "model", "module", "net")
_IN_FOLDER = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)


def load_init_weights(model: nn.Module, init: Source | None) -> InitReport | None:
    """Load the weights that a Task starts from, if any; report what happened to each tensor.

    Raises:
        CheckpointError: they cannot be read, or do not fit the model.
    """
    if init is None:
        return None
    init = as_init(init)
    if isinstance(init.weights, Mapping):
        return load_matching_weights(model, _state_dict(init.weights, init.name), init)
    path = init.path
    if (path / "checkpoints").is_dir():
        try:
            path = Run(path).choose("best").saved.path
        except (RunError, CheckpointError) as error:
            raise CheckpointError(f"init={str(path)!r}: {error}") from error
    if (path / MANIFEST).is_file() and not (path / "model.safetensors").is_file():
        found = open_checkpoint(path)  # many ranks wrote it, each its shards
        report = load_matching_weights(model, found.tensors("model"), init)
        files = {part.file for entry in found.entries("model").values() for part in entry.slices}
        hashes = {str(path / name): found.manifest.files[name].sha256 for name in sorted(files)}
    else:
        tensors: dict[str, Tensor] = {}
        hashes = {}
        for file in _find_files(path):
            tensors |= _read(file)
            with file.open("rb") as data:
                hashes[str(file)] = hashlib.file_digest(data, "sha256").hexdigest()
        report = load_matching_weights(model, tensors, init)
    report.files.update(hashes)
    return report


def _find_files(path: Path) -> list[Path]:
    """Return the files with the weights of a file, an index or a model's folder."""
    if path.is_dir():
        file = next((path / name for name in _IN_FOLDER if (path / name).is_file()), None)
        if file is None:
            raise CheckpointError(
                f"init={str(path)!r} is a folder without weights: it has none of "
                f"{', '.join(_IN_FOLDER)}. Name the file."
            )
        path = file
    if not path.is_file():
        raise CheckpointError(f"init={str(path)!r} does not exist. Check the path.")
    return _shards(path) if path.name.endswith(".index.json") else [path]


def _shards(index: Path) -> list[Path]:
    """Return the files that an index names, which must be in its folder."""
    try:
        names = set(parse_json(read_regular(index))["weight_map"].values())
        files = [index.parent / name for name in sorted(names)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} cannot be read: {error!r}.") from error
    for file in files:
        if file.parent != index.parent or file.name in ("", "..") or not file.is_file():
            raise CheckpointError(f"{index} names {file}, which is not a file beside it.")
    return files


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged or not a safetensors file: {error}. Fetch or write it again."
            ) from error
    if path.suffix in TORCH_FILES:
        return _state_dict(_read_torch(path), str(path))
    raise CheckpointError(
        f"init={str(path)!r} has an unknown format. Known: .safetensors, "
        f"{', '.join(TORCH_FILES)}, a folder of them, or a run folder."
    )


def _read_torch(path: Path) -> Any:
    """Read a file of torch.save with tensors and plain values; it cannot run code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises anything for a damaged file
        needed = re.search(r"GLOBAL ([\w.]+)", str(error))
        if needed is not None:
            raise CheckpointError(
                f"{path} needs {needed[1]}, and reading more than tensors would run code from the "
                "file. If you trust it, write only its tensors: "
                "torch.save(model.state_dict(), 'weights.pt'), or use safetensors."
            ) from error
        raise CheckpointError(
            f"{path} is damaged or not a file of torch.save ({type(error).__name__}). Fetch or "
            "write it again."
        ) from error


def _state_dict(found: Any, name: str) -> dict[str, Tensor]:
    """Return the tensors in the content of a file, which may be nested a few levels deep."""
    while isinstance(found, Mapping):
        inner = next((key for key in NESTED if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = found[inner]
    named = found if isinstance(found, Mapping) else {}
    tensors = {str(key): value for key, value in named.items() if isinstance(value, Tensor)}
    if not tensors:
        what = summarize_names(sorted(map(str, named))) or f"a {type(found).__name__}"
        raise CheckpointError(
            f"{name} has no tensors by name: it has {what}. Use a state dict, or one under "
            f"{', '.join(NESTED)}."
        )
    return tensors
