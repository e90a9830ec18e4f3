"""From a Task and a Config to a Plan, with the model built and nothing on a device yet."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from surestep.base.errors import ConfigError, suggest_names
from surestep.config.config import Config
from surestep.config.not_set import NOT_SET
from surestep.engine.batch import MicroBatch, only_element
from surestep.engine.checks.task import check_loss
from surestep.engine.data.apply_transform import name_of
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.data.batched import NoData, with_ready_batches
from surestep.engine.data.columns import check_not_columns, check_validation_columns
from surestep.engine.data.dataloader import check_no_sampler, loader_settings
from surestep.engine.data.dataset import check_dtypes, count_samples, dataset_of, find_collate
from surestep.engine.data.make_source import describe_randomness, is_in_memory
from surestep.engine.data.order import (
    apply_order,
    excluded_samples,
    group_by_length,
    remaining_data,
)
from surestep.engine.data.origins import check_origins
from surestep.engine.data.stream import find_state_problem, is_stream
from surestep.engine.data.target_stats import fit_class_weights
from surestep.engine.device import use_device
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import named_losses
from surestep.engine.metrics.base import metric_modes, names_of_objects, table_metric_names
from surestep.engine.model.compile import unwrap_compiled
from surestep.engine.model.layers import blocks_of
from surestep.engine.model.lazy import initialize_lazy, lazy_names
from surestep.engine.model.load_weights import has_adapters
from surestep.engine.optim.param_roles import param_info
from surestep.engine.parallel.wrap_policy import select_wrap_units
from surestep.engine.plan.fitting import DROPOUT, FIT
from surestep.engine.plan.plan import Plan, TaskInfo
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.plan.system import SystemInfo, read_system
from surestep.engine.resolve.optimizers import plan_optimizers
from surestep.engine.resolve.resolver import resolve, resolve_device, resolve_seed
from surestep.engine.rng import derive_seed, preserve_torch_rng, set_seed
from surestep.engine.state.average import BATCH_NORM
from surestep.engine.task.task import Task
from surestep.record.skipped_samples import read_samples
from surestep.trainer.ignored_rules import check_ignored

_AS_IT_IS: AbstractContextManager[Any] = nullcontext()


@dataclass(frozen=True)
class TaskOrigin:
    """Where a Task came from, for the records."""

    name: str = "run"  # the start of a default run folder's name
    recipe: Mapping[str, Any] = field(default_factory=dict)  # name, path and hash of its file
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the recipe's function
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of its other parameters
    set_options: Mapping[str, str] = field(default_factory=dict)  # where each option was set
    study: str | None = None  # the search that the run is a trial of
    tuned: Mapping[str, Any] | None = None  # what surestep tune wrote about the options


@dataclass(frozen=True)
class PreparedTask:
    """A Task whose model is built and whose Plan is made; nothing is on a device yet.

    Attributes:
        decide: makes the Plan of another Config here.
        info: what the Plan depends on in the Task.
        found_lr: the number for optim.lr="find", once it is known.
        range_test: what found it now, for the events; None if the run had it.
    """

    task: Task
    config: Config
    system: SystemInfo
    plan: Plan
    model: nn.Module
    loss: Loss
    decide: Callable[..., Plan]
    info: TaskInfo
    found_lr: float | None = None
    range_test: Mapping[str, Any] | None = None

    @property
    def fits(self) -> bool:
        """Whether the run finds the micro-batch size that fits in memory."""
        return self.config.micro_batch_size == FIT

    @property
    def fits_evaluation(self) -> bool:
        """Whether evaluations do; they also do if only the size of training is to be found."""
        size = self.config.validation.batch_size
        return size == FIT or (size is NOT_SET and self.fits)

    def start_with(self, **found: Any) -> "PreparedTask":
        """Return it with a Plan that starts with each FoundSize, by fields of TaskInfo."""
        info = replace(self.info, **found)
        decide = partial(self.decide, task_info=info)
        plan = decide(self.config)
        # What found the rate is in its reason.
        before = {one.option: one for one in self.plan.decisions if one.option == "optim.lr"}
        decisions = tuple(before.get(one.option, one) for one in plan.decisions)
        return replace(self, info=info, decide=decide, plan=plan.replace(decisions=decisions))


def plan_task(
    task: Task,
    config: Config,
    *,
    origin: TaskOrigin | None = None,
    system: SystemInfo | None = None,
    build_in: AbstractContextManager[Any] = _AS_IT_IS,
) -> PreparedTask:
    """Build the model after seeding, and resolve every option, for this machine by default.

    `build_in` is entered while the model is built.
    """
    system = system or read_system()
    check_origins(task)
    task = with_ready_batches(task)
    for name, data in data_splits(task).items():
        if find_collate(data, task) is None:
            check_not_columns(data, name)
    excluded = _excluded(task, config)
    task = apply_order(group_by_length(task) if config.data.group_by_length else task, excluded)
    check_validation_columns(task.val)
    for name, data in task.val_sets().items():
        check_no_sampler(data, name)
    if not isinstance(task.model, nn.Module):
        set_seed(derive_seed("build", resolve_seed(config)))
    with use_device(resolve_device(config, system)), _meta_init(task, config, system), build_in:
        model = unwrap_compiled(task.build_model())
    for name, data in task.val_sets().items():
        check_dtypes(task.train, data, name, model)
    loss = task.build_loss(model)
    check_loss(task.loss)
    origins = origin.set_options if origin is not None else {}
    check_ignored(config, origins)
    if lazy_names(model):
        initialize_lazy(model, _first_batch(task, config, loss, system, excluded))
    info = _task_info(task, config, model, loss, excluded)
    resolver = partial(plan_optimizers, task, model) if task.optimizers else resolve
    decide = partial(resolver, system=system, task_info=info, origins=origins)
    return PreparedTask(task, config, system, decide(config), model, loss, decide, info)


def _excluded(task: Task, config: Config) -> ExcludedSamples | None:
    """Return the training samples that are excluded, read from their file if a file is set."""
    samples = config.exclude_samples
    if not samples or is_stream(task.train):  # the rules reject a stream
        return None
    if isinstance(samples, str):
        return excluded_samples(task, read_samples(Path(samples)), samples)
    return excluded_samples(task, samples, "")


def _first_batch(
    task: Task, config: Config, loss: Loss, system: SystemInfo, excluded: ExcludedSamples | None
) -> MicroBatch:
    """Read the first batch of a Task whose model has lazy modules, with the Plan of another model.

    The generators are restored, since the weights are drawn next.
    """
    options = {
        name: value
        for name, value in config.set_options().items()
        if name.partition(".")[0] not in _MODEL_GROUPS
    }
    with preserve_torch_rng(torch.device("cpu")):
        info = _task_info(task, config, nn.Linear(1, 1), loss, excluded)
        info = replace(info, own_optimizer=True)
        plan = resolve(Config.from_options(options), system, info).single_process()
        loader = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
        try:
            return loader.first()[1]
        finally:
            loader.close()


_MODEL_GROUPS = (  # that no batch depends on
    "optim",
    "schedule",
    "average",
    "validation",
    "early_stop",
    "checkpoint",
    "guard",
    "parallel",
    "activation_checkpointing",
    "compile",
)


def _task_info(
    task: Task, config: Config, model: nn.Module, loss: Loss, excluded: ExcludedSamples | None
) -> TaskInfo:
    """Collect what a Plan depends on in the Task."""
    reason = fit_class_weights(loss, remaining_data(task, excluded), resolve_seed(config))
    stream = is_stream(task.train)
    return TaskInfo(
        train_samples=train_samples(task, excluded),
        skips=excluded,
        order=task.sampler,
        batch_transform=name_of(task.batch_transform),
        in_memory=is_in_memory(task.train, task),
        is_stream=stream,
        why_read_again=find_state_problem(dataset_of(task.train, "train")) if stream else "",
        randomness=describe_randomness(task),
        loader=loader_settings(task.train),
        val_sets=tuple(task.val_sets()),
        val_batch_sizes=tuple(
            own["batch_size"]
            for data in task.val_sets().values()
            if (own := loader_settings(data)) and own["batch_size"]
        ),
        metrics=_metric_modes(task),
        tables=table_metric_names(task.metrics),
        objects=names_of_objects(task.metrics),
        own_optimizer=task.optimizer is not None,
        own_schedule=task.schedule is not None,
        **param_info(model),
        not_splitting=_why_not_separable(task, model, loss),
        adapters=has_adapters(model),
        blocks=bool(blocks_of(model)),
        convolutions=any(p.dim() == 4 for p in model.parameters()),
        called=loss.kind != "none",
        own_step=task.step is not None,
        batched=task.collate_fn is only_element,
        collates=find_collate(task.train, task) is not None,
        no_data=isinstance(task.train, NoData),
        loss=loss.label,
        evaluates_loss=not loss.is_in_training_only,
        loss_reason=reason,
        batch_norm=_has(model, BATCH_NORM),
        is_built=isinstance(task.model, nn.Module),
        blocks_by=cache(partial(select_wrap_units, model)),
        no_predictions=partial(_why_no_predictions, task, loss),
    )


def _meta_init(task: Task, config: Config, system: SystemInfo) -> AbstractContextManager[Any]:
    """Return a context that builds only shapes, if the values come from rank 0."""
    is_other = system.launched.rank > 0 or system.launched.is_simulated
    is_built = isinstance(task.model, nn.Module)
    is_meta = is_other and not is_built and bool(config.parallel.meta_init)
    return torch.device("meta") if is_meta else nullcontext()


def train_samples(task: Task, excluded: ExcludedSamples | None) -> int | None:
    """Count the samples of an epoch of training; None for a stream without a length."""
    if task.sampler is not None:
        return len(task.sampler)
    return count_samples(task.train, "train") if excluded is None else excluded.left


def _metric_modes(task: Task) -> dict[str, Literal["min", "max"] | None]:
    """Return for each metric whether smaller or larger is better, if it says."""
    losses: dict[str, Literal["min", "max"] | None] = dict.fromkeys(task.loss_names(), "min")
    return losses | {
        key: mode
        for name, metric in task.metrics.items()
        for key, mode in metric_modes(name, metric).items()
        if name not in table_metric_names(task.metrics)
    }


def _why_not_separable(task: Task, model: nn.Module, loss: Loss) -> tuple[str, ...]:
    """Return the reasons why micro-batches give other numbers than the full batch."""
    reasons = {}
    for _, part in named_losses(loss):
        text = f"{part.label} compares samples of a micro-batch with each other"
        if part.is_in_training_only:
            text = "the model itself averages its losses over each micro-batch"
        reasons[text] = not part.is_separable
    reasons |= {
        "the Task says its loss does not split": not task.loss_is_separable,
        "batch statistics are the micro-batch's": _has(model, BATCH_NORM),
        DROPOUT: any(
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            for module in model.modules()
        ),
    }
    return tuple(reason for reason, applies in reasons.items() if applies)


def _why_no_predictions(task: Task, loss: Loss) -> str:
    """Return why evaluations have no predictions to show; "" if they have some."""
    if not task.val_sets():
        return "there is no validation data"
    from surestep.engine.evaluate.sample_predictions import why_not_shown

    reasons = [why_not_shown(part) for _, part in named_losses(loss)]
    return reasons[0] if all(reasons) else ""


def _has(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


def data_splits(task: Task) -> dict[str, Any]:
    """Return each split of the data by name: "train", the validation sets, "test"."""
    splits = {"train": task.train, **task.val_sets()}
    return splits if task.test is None else {**splits, "test": task.test}


def check_split(split: str, splits: Mapping[str, Any]) -> None:
    """Raise a ConfigError if the task has no such split of data."""
    if split not in splits:
        raise ConfigError(f"The task has no {split} data. {suggest_names(split, splits)}")


def choose_split_to_predict(task: Task) -> str:
    """Return "test", or the name of the only validation set of a task without test data.

    Raises:
        ConfigError: there is no test data, and not one validation set.
    """
    names = ["test"] if task.test is not None else list(task.val_sets())
    if len(names) == 1:
        return names[0]
    has = f"{len(names)} validation sets" if names else "no validation data"
    options = " or ".join(f"--split {name}" for name in names or ["train"])
    raise ConfigError(f"The task has no test data and {has}. Pass {options}.")


def make_eval_loaders(planned: PreparedTask) -> dict[str, BatchLoader]:
    """Return the loader that evaluates each split of the data."""
    task = planned.task
    return {
        split: make_loader(data, split, task=task, loss=planned.loss, plan=planned.plan)
        for split, data in data_splits(task).items()
    }
