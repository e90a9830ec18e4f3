"""What a run is known by: config, recipe, data, loss, model, and what computes it."""

from collections.abc import Mapping
from hashlib import blake2b
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from surestep.base.version import VERSION
from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.fingerprint import map_fingerprint
from surestep.engine.data.stream import Reader, digest, fingerprint, is_stream
from surestep.engine.facts import device_name
from surestep.engine.loss import Loss
from surestep.record.files import plain
from surestep.record.run_files import CONFIG_FORMAT
from surestep.trainer.changes import COUNT, FIRST, LOOKED_AT, SKIPPED, WORKERS
from surestep.trainer.code import own_code
from surestep.trainer.modules import describe_modules
from surestep.trainer.planning import Origin, Planned, train_samples

# Decisions that follow from others, or that another part says better.
DERIVED = (
    "device",
    "loss",
    "cutting",
    "steps_per_epoch",
    "guard",
    "data.randomness",
    "data.resume",
)


def identity(origin: Origin, planned: Planned) -> dict[str, Any]:
    """Return what a run was asked to be, and what it is known by when it is gone on with."""
    decisions = planned.plan.decisions
    return {
        "format": CONFIG_FORMAT,
        "recipe": plain(dict(origin.recipe)),
        "code": own_code(origin.recipe.get("path")),
        "task": plain(dict(origin.parameters)),
        "config": plain(planned.config.said()),
        "decided": {
            each.option: plain(each.value) for each in decisions if each.option not in DERIVED
        },
        "data": _data(planned),
        "loss": _loss(planned.loss),
        "model": _model(planned.model),
        "modules": describe_modules(planned.model),
        "machine": {
            "torch": planned.facts.torch_version,
            "surestep": VERSION,
            "device": device_name(planned.facts, planned.plan.device),
            "threads": planned.facts.threads,
        },
    }


def _data(planned: Planned) -> dict[str, Any]:
    """Return what the training data is known by: some of its samples, or how a stream begins."""
    task, plan = planned.task, planned.plan
    if not is_stream(task.train):
        skips = plan.skip_samples
        return {
            COUNT: train_samples(task, skips),
            LOOKED_AT: map_fingerprint(task.train, "train", task=task, plan=plan),
            SKIPPED: [] if skips is None else list(skips.samples),
        }
    reader = Reader(dataset_of(task.train, "train"), plan.seed)
    workers = max(1, plan.data_num_workers)  # one gives the same order as none
    return {WORKERS: workers, FIRST: fingerprint(reader)}


def _loss(loss: Loss) -> dict[str, Any]:
    """Return what losses are called, with their options as far as JSON can hold them."""
    if loss.parts:
        return {each.name: {"weight": each.weight, **_loss(each.loss)} for each in loss.parts}
    found = {"called": loss.called, "divides_by": loss.divides_by}
    return found if loss.module is None else {**found, **_options(loss.module)}


def _options(module: nn.Module) -> dict[str, Any]:
    """Return a module's own numbers and words, and digests of its tensors."""
    own = {
        name: plain(value)
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
