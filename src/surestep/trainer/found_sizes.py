"""The sizes that runs of one recipe found on this machine, kept in the cache folder of the user.

An entry is used by runs with the same code, model shapes, options that decide the memory, device
and its memory. To find a size again, for example after another process left the GPU, delete the
folder `fit` of the cache.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from surestep.base.cache_folder import find_cache_folder
from surestep.base.files import replace_file
from surestep.engine.allocator import machine_memory
from surestep.engine.plan.system import device_name
from surestep.record.io import read_regular, to_jsonable
from surestep.trainer.planning import PreparedTask, TaskOrigin
from surestep.trainer.run_identity import describe_model, hash_user_modules

_OPTIONS = (
    *("batch_size", "precision", "compile", "activation_checkpointing", "channels_last"),
    *("deterministic", "matmul_precision", "cudnn_benchmark", "cpu_allocator", "batch_transform"),
    *("optim.name", "optim.implementation", "optim.groups", "average.kind", "average.buffers"),
)
_LARGEST = 10_000  # bytes of an entry


@dataclass(frozen=True)
class FoundSizes:
    """Sizes that fit; None if none was found.

    Attributes:
        training: the micro-batch size.
        evaluation: the samples of a forward pass of an evaluation, the smallest of all sets.
    """

    training: int | None = None
    evaluation: int | None = None


def locate_sizes(planned: PreparedTask, origin: TaskOrigin) -> Path:
    """Return the file of a recipe, on this device and with these options."""
    plan, system = planned.plan, planned.system
    gpu = plan.device.index or 0
    memory = system.cuda_memory[gpu] if plan.device.type == "cuda" else machine_memory()
    known = {
        "recipe": origin.recipe.get("sha256"),
        "code": hash_user_modules(origin.recipe.get("path")),
        "task": to_jsonable(dict(origin.parameters)),
        "model": describe_model(planned.model),
        "loss": planned.loss.label,
        "options": {
            option: str(value)
            for option, value, _ in plan.decisions
            if option in _OPTIONS or (option.startswith("parallel.") and option != "parallel.rank")
        },
        "device": [device_name(system, plan.device), memory, system.torch_version],
    }
    key = sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:32]
    return find_cache_folder("fit") / f"{key}.json"


def load_sizes(path: Path) -> FoundSizes:
    """Return what earlier runs found; nothing if there is no entry, or it is damaged."""
    try:
        entry = json.loads(read_regular(path, _LARGEST))
        return FoundSizes(_size(entry, "training"), _size(entry, "evaluation"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return FoundSizes()


def _size(entry: Any, name: str) -> int | None:
    size = entry.get(name)
    return size if type(size) is int and size > 0 else None


def store_sizes(path: Path, **found: int) -> None:
    """Add sizes to an entry, by the fields of FoundSizes; do nothing if it cannot be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {**load_sizes(path).__dict__, **found}
        with replace_file(path) as temporary:
            temporary.write_text(json.dumps(entry), encoding="utf-8")
