"""What a process is made of beside installed packages: the user's own modules, by their content."""

import os
import sys
import sysconfig
from collections.abc import Mapping
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from surestep.base.version import VERSION
from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.open_source import dataset_fingerprint
from surestep.engine.data.stream import StreamReader, digest, fingerprint, is_stream
from surestep.engine.losses.adapt import Loss
from surestep.engine.plan.system import device_name
from surestep.record.io import to_jsonable
from surestep.record.schemas import CONFIG_FORMAT
from surestep.trainer.config_diff import COUNT, FIRST, LOOKED_AT, SKIPPED, WORKERS
from surestep.trainer.modules import describe_modules
from surestep.trainer.planning import PreparedTask, TaskOrigin, train_samples

_INSTALLED = tuple(f"{os.sep}{each}{os.sep}" for each in ("site-packages", "dist-packages"))
_SHIPPED = Path(__file__).parents[1]


def hash_user_modules(recipe: Any = None) -> dict[str, str]:
    """Return a hash of the file of each module that is the user's own, by the module's name.

    They are neither of the standard library nor installed nor ours. The script is `__main__`. A
    file that bears several names stands under the first.

    Args:
        recipe: the path of a recipe's file, which is known by itself.
    """
    where = sysconfig.get_paths()
    other = (where["stdlib"], where["platstdlib"], where["scripts"], str(_SHIPPED))
    folders = tuple(f"{each}{os.sep}" for each in other)
    files = _files()
    seen, found = {recipe}, {}
    for name, file in sorted(files.items()):
        top = files.get(name.partition(".")[0], file)  # torch puts what it compiles elsewhere
        if file in seen or _is_others(file, folders) or _is_others(top, folders):
            continue
        seen.add(file)
        try:
            found[name] = blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
        except (OSError, ValueError):  # gone since it was imported, or no name of a file
            continue
    return found


def _files() -> dict[str, str]:
    """Return the source files of all modules; one that is loaded when it is used stays unloaded."""
    found = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and isinstance(name, str) and name.isprintable():
            file = object.__getattribute__(module, "__dict__").get("__file__")
            if isinstance(file, str) and file.endswith(".py"):
                found[name] = file
    return found


def _is_others(file: str, folders: tuple[str, ...]) -> bool:
    return file.startswith(folders) or any(each in file for each in _INSTALLED)


# Decisions that follow from others, or that another part says better.
DERIVED = (
    "device",
    "loss",
    "batch_layout",
    "steps_per_epoch",
    "guard",
    "data.randomness",
    "data.resume",
)


def run_identity(origin: TaskOrigin, planned: PreparedTask) -> dict[str, Any]:
    """Return what a run was asked to be, and what it is known by when it is gone on with."""
    decisions = planned.plan.decisions
    return {
        "format": CONFIG_FORMAT,
        "recipe": to_jsonable(dict(origin.recipe)),
        "code": hash_user_modules(origin.recipe.get("path")),
        "task": to_jsonable(dict(origin.parameters)),
        "config": to_jsonable(planned.config.set_options()),
        "decided": {
            each.option: to_jsonable(each.value) for each in decisions if each.option not in DERIVED
        },
        "data": _data(planned),
        "loss": _loss(planned.loss),
        "model": _model(planned.model),
        "modules": describe_modules(planned.model),
        "machine": {
            "torch": planned.system.torch_version,
            "surestep": VERSION,
            "device": device_name(planned.system, planned.plan.device),
            "threads": planned.system.threads,
        },
    }


def _data(planned: PreparedTask) -> dict[str, Any]:
    """Return what the training data is known by: some of its samples, or how a stream begins."""
    task, plan = planned.task, planned.plan
    if not is_stream(task.train):
        skips = plan.exclude_samples
        return {
            COUNT: train_samples(task, skips),
            LOOKED_AT: dataset_fingerprint(task.train, "train", task=task, plan=plan),
            SKIPPED: [] if skips is None else list(skips.samples),
        }
    reader = StreamReader(dataset_of(task.train, "train"), plan.seed)
    workers = max(1, plan.data_num_workers)  # one gives the same order as none
    return {WORKERS: workers, FIRST: fingerprint(reader)}


def _loss(loss: Loss) -> dict[str, Any]:
    """Return what losses are called, with their options as far as JSON can hold them."""
    if loss.components:
        return {each.name: {"weight": each.weight, **_loss(each.loss)} for each in loss.components}
    found = {"called": loss.label, "divides_by": loss.divides_by}
    return found if loss.module is None else {**found, **_options(loss.module)}


def _options(module: nn.Module) -> dict[str, Any]:
    """Return a module's own numbers and words, and digests of its tensors."""
    own = {
        name: to_jsonable(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }
    tensors = chain(module.named_parameters(), module.named_buffers())
    return own | {name: digest(each) for name, each in tensors if not is_lazy(each)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _model(model: nn.Module) -> str | None:
    """Return how many parameters in how many tensors, and a digest of their names and shapes."""
    tensors: dict[str, Tensor] = dict(chain(model.named_parameters(), model.named_buffers()))
    if any(map(is_lazy, tensors.values())):
        return None
    shapes = sorted((name, tuple(each.shape)) for name, each in tensors.items())
    known = blake2b(repr(shapes).encode(), digest_size=4).hexdigest()
    count = sum(each.numel() for each in model.parameters())
    return f"{count:,} parameters in {len(shapes)} tensors, {known}"
