"""The sizes that runs of one recipe found on this machine, kept in the cache folder of the user.

A size is used by runs with the same code, shapes of the model and of the data, options that decide
the memory, device and its memory, and limits of the process. To find a size again, for example
after another process left the GPU, delete the folder `fit` of the cache. Each size is a file, so
processes that write at the same time replace no other size.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

import torch

from surestep.base.cache_folder import find_cache_folder
from surestep.base.files import replace_file
from surestep.engine.allocator import machine_memory
from surestep.engine.batch import describe_shapes
from surestep.engine.data.batch_loader import make_loader
from surestep.engine.host_memory import read_limits
from surestep.engine.plan.system import device_name
from surestep.engine.rng import preserve_torch_rng
from surestep.record.io import read_regular, to_jsonable
from surestep.trainer.planning import PreparedTask, TaskOrigin, data_splits
from surestep.trainer.run_identity import describe_model, hash_user_modules

_OPTIONS = (
    *("batch_size", "precision", "compile", "activation_checkpointing", "channels_last"),
    *("deterministic", "matmul_precision", "cudnn_benchmark", "cpu_allocator", "batch_transform"),
    *("optim.name", "optim.implementation", "optim.groups", "average.kind", "average.buffers"),
)
_LARGEST = 20  # bytes of a file
_CPU = torch.device("cpu")


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
    """Return the path of the sizes of a recipe, on this device and with these options."""
    plan, system = planned.plan, planned.system
    gpu = plan.device.index or 0
    memory = system.cuda_memory[gpu] if plan.device.type == "cuda" else machine_memory()
    known = {
        "recipe": origin.recipe.get("sha256"),
        "code": hash_user_modules(origin.recipe.get("path")),
        "task": to_jsonable(dict(origin.parameters)),
        "model": describe_model(planned.model),
        "loss": planned.loss.label,
        "data": _describe_data(planned),
        "options": {
            option: str(value)
            for option, value, _ in plan.decisions
            if option in _OPTIONS or (option.startswith("parallel.") and option != "parallel.rank")
        },
        "device": [device_name(system, plan.device), memory, system.torch_version],
        "limits": read_limits(),
    }
    key = sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:32]
    return find_cache_folder("fit") / key


def _describe_data(planned: PreparedTask) -> dict[str, str]:
    """Return the shapes of the first stored sample of each set, without those that fail."""
    task, loss = planned.task, planned.loss
    plan = planned.plan.single_process().without_workers()
    plan = plan.replace(device=_CPU, validation_batch_size=1)
    shapes = {}
    for name in ("train", *task.val_sets()):
        with suppress(Exception), preserve_torch_rng(_CPU):  # the run reports what fails
            loader = make_loader(data_splits(task)[name], name, task=task, loss=loss, plan=plan)
            try:
                _, micro = loader.first()
                content = micro.args, dict(micro.kwargs), micro.targets
                shapes[name] = describe_shapes(content)
            finally:
                loader.close()
    return shapes


def load_sizes(path: Path) -> FoundSizes:
    """Return what earlier runs found; nothing if there is no file, or it is damaged."""
    return FoundSizes(*(_load_size(_file_of(path, field.name)) for field in fields(FoundSizes)))


def _file_of(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}-{name}")


def _load_size(path: Path) -> int | None:
    try:
        size = int(read_regular(path, _LARGEST))
    except (OSError, ValueError):
        return None
    return size if size > 0 else None


def store_sizes(path: Path, **found: int) -> None:
    """Replace sizes, by the fields of FoundSizes.

    Raises:
        OSError: they cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, size in found.items():
        with replace_file(_file_of(path, name)) as temporary:
            temporary.write_text(f"{size}", encoding="ascii")
