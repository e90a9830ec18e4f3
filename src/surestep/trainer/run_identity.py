"""The identity of a run: its config, code, data, loss and model, compared when it resumes."""

import sys
from collections.abc import Collection, Mapping
from hashlib import blake2b
from inspect import isroutine
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from surestep.base.user_code import is_user_file
from surestep.base.version import VERSION
from surestep.engine.data.dataset import count_samples, dataset_of
from surestep.engine.data.make_source import dataset_fingerprint
from surestep.engine.data.stream import PROBED, StreamReader, digest, fingerprint, is_stream
from surestep.engine.losses.adapt import Loss
from surestep.engine.plan.fitting import FIT
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.plan.plan import Plan
from surestep.engine.plan.system import device_name
from surestep.engine.rng import SEEDS
from surestep.engine.task.task import Task
from surestep.record.io import to_jsonable
from surestep.record.schemas import CONFIG_FORMAT
from surestep.trainer.config_diff import COUNT, EXCLUDED, FIRST_SAMPLES, SOME_SAMPLES, WORKERS
from surestep.trainer.former_items import ITEMS
from surestep.trainer.planning import PreparedTask, TaskOrigin, train_samples

_MODULES_OF_OTHERS: dict[Any, Any] = {}  # by name: thousands, which each start would examine again
_LAST_MODULES: dict[Any, Any] = {}  # all modules at the last start
_LAST_USER_MODULES: list[Any] = []  # the names of those that may be the user's
_LAST = 10_000  # sample of a stream in a digest: more are not checked before training
DERIVED = (  # decisions that follow from others, or that another part describes better
    "device",
    "loss",
    "batch_layout",
    "steps_per_epoch",
    "guard",
    "data.randomness",
    "data.resume",
)


def run_identity(origin: TaskOrigin, planned: PreparedTask) -> dict[str, Any]:
    """Return what config.json holds: the setup of a run, to compare when it resumes."""
    decisions = planned.plan.decisions
    return {
        "format": CONFIG_FORMAT,
        "recipe": to_jsonable(dict(origin.recipe)),
        **({} if origin.study is None else {"study": origin.study}),
        **({} if origin.tuned is None else {"tuned": to_jsonable(dict(origin.tuned))}),
        "code": hash_user_modules(origin.recipe.get("path")),
        "task": to_jsonable(dict(origin.parameters)),
        "task_defaults": {
            name: to_jsonable(value) if _is_plain(value) else _name_of(value)
            for name, value in origin.defaults.items()
        },
        "config": to_jsonable(planned.config.set_options()),
        **({} if planned.found_lr is None else {"lr_find": planned.found_lr}),
        "decided": {
            decision.option: to_jsonable(decision.value)
            for decision in decisions
            if decision.option not in DERIVED
        }
        | _fitting(planned),
        "seeds": SEEDS,
        "data": _data(planned),
        "validation": _validation(planned),
        "loss": _loss(planned.loss),
        "items": ITEMS,
        "model": describe_model(planned.model),
        "modules": {
            name or "(the model)": {"type": _name_of(type(module)), **_settings(module)}
            for name, module in planned.model.named_modules()
        },
        "machine": {
            "torch": planned.system.torch_version,
            "surestep": VERSION,
            "device": device_name(planned.system, planned.plan.device),
            "threads": planned.system.threads,
        },
    }


def _fitting(planned: PreparedTask) -> dict[str, str]:
    """Return the options whose value is what fits in memory: each run records its own sizes."""
    fits = {"micro_batch_size": planned.fits, "validation.batch_size": planned.fits_evaluation}
    return {option: FIT for option, is_found in fits.items() if is_found}


def hash_user_modules(recipe: Any = None) -> dict[str, str]:
    """Return a hash of the file of each imported module of the user, by the module's name.

    The script is `__main__`. The recipe's file is left out: the identity has it already.
    """
    seen, hashes = {recipe}, {}
    for name, file in sorted(_user_files().items()):
        if file in seen:
            continue
        seen.add(file)
        try:
            hashes[name] = blake2b(Path(file).read_bytes(), digest_size=8).hexdigest()
        except (OSError, ValueError) as error:  # deleted since the import, or not a file name
            not_checked(f"the code of {name}", f"its file cannot be read: {error}")
    return hashes


def _user_files() -> dict[str, str]:
    """Return the source file of each module of the user."""
    files, modules = {}, sys.modules.copy()
    # Two starts often find the same modules. The comparison takes a tenth of the time of the loop.
    is_new = modules != _LAST_MODULES
    for name in modules if is_new else _LAST_USER_MODULES:
        module = modules[name]
        if _MODULES_OF_OTHERS.get(name) is module:
            continue
        file = _source_file(name, module)
        top = sys.modules.get(name.partition(".")[0]) if isinstance(name, str) else None
        top_file = _source_file(name, top)  # torch writes compiled modules elsewhere
        if file is None or not all(map(is_user_file, filter(None, (file, top_file)))):
            if name != "__main__":  # which may become that of another script
                _MODULES_OF_OTHERS[name] = module
        else:
            files[name] = file
    if is_new:
        _LAST_MODULES.clear()
        _LAST_MODULES.update(modules)
        _LAST_USER_MODULES[:] = modules.keys() & {*files, "__main__"}
    return files


def _source_file(name: Any, module: Any) -> str | None:
    """Return the source file of a module, without loading a lazy one."""
    if not (isinstance(module, ModuleType) and isinstance(name, str) and name.isprintable()):
        return None
    try:
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # cffi's libraries pass as modules
        return None
    return file if isinstance(file, str) and file.endswith(".py") else None


def _data(planned: PreparedTask) -> dict[str, Any]:
    """Return the number and a digest of training samples, or how a stream starts."""
    task, plan = planned.task, planned.plan
    if not is_stream(task.train):
        excluded = plan.exclude_samples
        return {
            COUNT: train_samples(task, excluded),
            SOME_SAMPLES: dataset_fingerprint(task.train, "train", task=task, plan=plan),
            EXCLUDED: [] if excluded is None else list(excluded.samples),
        }
    reader = StreamReader(dataset_of(task.train, "train"), plan.seed, "train")
    workers = max(1, plan.data_num_workers)  # one worker gives the same order as none
    return {WORKERS: workers, FIRST_SAMPLES: fingerprint(reader)}


def _validation(planned: PreparedTask) -> dict[str, Any]:
    """Describe each validation set that can be read; its evaluation reports an error."""
    task, plan, described = planned.task, planned.plan, {}
    for name, data in task.val_sets().items():
        try:
            described[name] = describe_split(data, name, task=task, plan=plan)
        except Exception as error:  # of the user's data
            not_checked(f"{name} data", f"it cannot be read: {type(error).__name__}: {error}")
    return described


def describe_split(
    data: Any, split: str, *, task: Task, plan: Plan, also: Collection[int] = ()
) -> dict[str, Any]:
    """Return the number and a digest of samples of a split, or how a stream starts.

    The samples in `also` are in the digest; of a stream, all up to the last of them.
    """
    known: dict[str, Any] = {"samples": count_samples(data, split)}
    if is_stream(data):
        reader = StreamReader(dataset_of(data, split), plan.seed, split)
        last = min(max(also, default=0), _LAST)
        return {**known, FIRST_SAMPLES: fingerprint(reader, max(PROBED, 1 + last))}
    found = dataset_fingerprint(data, split, task=task, plan=plan, also=also)
    return {**known, SOME_SAMPLES: found}


def _loss(loss: Loss) -> dict[str, Any]:
    """Return the name of each loss, with its options and digests of its tensors."""
    if loss.components:
        return {part.name: _weighted(_loss(part.loss), part.weight) for part in loss.components}
    known = {"called": loss.label, "divides_by": loss.divides_by}
    if loss.module is None:
        return known
    options = {
        name: to_jsonable(value)
        for name, value in vars(loss.module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }
    tensors = chain(loss.module.named_parameters(), loss.module.named_buffers())
    return known | options | {name: digest(value) for name, value in tensors if not is_lazy(value)}


def _weighted(known: dict[str, Any], weight: float) -> dict[str, Any]:
    """Add the weight of one of several losses to its description."""
    if "weight" not in known:
        return {"weight": weight, **known}
    # Runs of earlier versions have only the option of the loss with this name.
    return known if weight == 1 else {**known, "loss_weight": weight}


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def describe_model(model: nn.Module) -> str | None:
    """Return the number of parameters and tensors, and a digest of their names and shapes."""
    tensors = dict(chain(model.named_parameters(), model.named_buffers()))
    if any(map(is_lazy, tensors.values())):
        not_checked("the shapes of the model", "it has lazy modules, whose shapes a batch decides")
        return None
    shapes = sorted((name, tuple(tensor.shape)) for name, tensor in tensors.items())
    shape_digest = blake2b(repr(shapes).encode(), digest_size=4).hexdigest()
    count = sum(parameter.numel() for parameter in model.parameters())
    return f"{count:,} parameters in {len(shapes)} tensors, {shape_digest}"


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the public numbers, strings and functions of a module, by name."""
    settings = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in ("training", "forward"):
            continue
        if isroutine(value):
            settings[name] = _name_of(value)
        elif (plain := _as_json(value)) is not None:
            settings[name] = plain
    return settings


def _as_json(value: Any) -> Any:
    """Return a number, a string or a tuple of those as JSON has it; None for anything else."""
    if isinstance(value, (tuple, list)):
        parts = [_as_json(part) for part in value]
        return None if None in parts else parts
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return value if type(value) in (bool, int, str) else None


def _name_of(value: Any) -> str:
    name = getattr(value, "__qualname__", type(value).__name__)
    return f"{getattr(value, '__module__', None) or 'builtins'}.{name}"
