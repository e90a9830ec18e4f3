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
from surestep.engine.batch import MicroBatch, only_element
from surestep.engine.checks.task import check_loss
from surestep.engine.data.apply_transform import name_of
from surestep.engine.data.batch_loader import BatchLoader, make_loader
from surestep.engine.data.batched import NoData, with_ready_batches
from surestep.engine.data.dataloader import check_no_sampler, loader_settings
from surestep.engine.data.dataset import check_dtypes, count_samples, dataset_of
from surestep.engine.data.open_source import is_in_memory, loading_seed_info
from surestep.engine.data.order import apply_order, excluded_samples, remaining_data
from surestep.engine.data.stream import find_state_problem, is_stream
from surestep.engine.data.target_stats import fit_class_weights
from surestep.engine.device import use_device
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.multi import named_losses
from surestep.engine.metrics.base import metric_modes, table_metric_names
from surestep.engine.model.compile import unwrap_compiled
from surestep.engine.model.layers import blocks_of
from surestep.engine.model.lazy import initialize_lazy, lazy_names
from surestep.engine.model.peft import has_adapters
from surestep.engine.model.precision import torch_settings
from surestep.engine.model.preserve import preserve_modes
from surestep.engine.optim.param_roles import param_info
from surestep.engine.parallel.wrap_policy import select_wrap_units
from surestep.engine.plan.plan import Plan, TaskInfo
from surestep.engine.plan.specs import ExcludedSamples
from surestep.engine.plan.system import SystemInfo, read_facts
from surestep.engine.profile.activation_memory import ActivationMemory, measure_activations
from surestep.engine.profile.memory_estimate import (
    MemoryEstimate,
    RankMemory,
    estimate_rank_memory,
)
from surestep.engine.rng import preserve_torch_rng, set_seed
from surestep.engine.rules.optimizers import plan_optimizers
from surestep.engine.rules.resolve import resolve, resolve_device, resolve_seed
from surestep.engine.state.average import BATCH_NORM
from surestep.engine.task.init_weights import InitReport
from surestep.engine.task.task import Task
from surestep.record.pretrained import load_init_weights
from surestep.record.skipped_samples import read_samples


@dataclass(frozen=True)
class TaskOrigin:
    """Where a Task came from, for the records.

    Attributes:
        name: what a default run folder is called after.
        recipe: name, path and hash of the recipe's file; empty where there is none.
        parameters: what the recipe's function was called with.
        said: where each option was said, by full name.
    """

    name: str = "run"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    set_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparedTask:
    """A Task whose model is built and whose Plan is made; nothing is on a device yet."""

    task: Task
    config: Config
    system: SystemInfo
    plan: Plan
    model: nn.Module
    loss: Loss
    decide: Callable[[Config], Plan]  # what another Config would have led to here


def plan_task(
    task: Task, config: Config, *, origin: TaskOrigin | None = None, facts: SystemInfo | None = None
) -> PreparedTask:
    """Build the model after seeding, and decide every option.

    Args:
        task: what is trained.
        config: what is asked.
        origin: where the Task came from.
        facts: of the machine; of this one where not said.

    Raises:
        ConfigError, TaskError, DataError: a wish that cannot be kept, or parts that do not fit.
    """
    facts = facts or read_facts()
    task = with_ready_batches(task)
    skips = _excluded(task, config)
    task = apply_order(task, skips)
    for name, data in task.val_sets().items():
        check_no_sampler(data, name)
        check_dtypes(task.train, data, name)
    if not isinstance(task.model, nn.Module):
        set_seed(resolve_seed(config))
    with use_device(resolve_device(config, facts)), _on_meta(task, config, facts):
        model = unwrap_compiled(task.build_model())
    loss = task.build_loss(model)
    check_loss(task.loss)
    if lazy_names(model):
        initialize_lazy(model, _first_batch(task, config, loss, facts, skips))
    given = _given(task, config, model, loss, skips)
    said = origin.set_options if origin is not None else {}
    one = partial(plan_optimizers, task, model) if task.optimizers else resolve
    decide = partial(one, facts=facts, given=given, origins=said)
    return PreparedTask(task, config, facts, decide(config), model, loss, decide)


def _excluded(task: Task, config: Config) -> ExcludedSamples | None:
    """Return the training samples that are excluded, read from their file if a file is set.

    Raises:
        ConfigError: they cannot be excluded, or the file cannot be read.
    """
    samples = config.exclude_samples
    if not samples or is_stream(task.train):  # the rules reject a stream
        return None
    if isinstance(samples, str):
        return excluded_samples(task, read_samples(Path(samples)), samples)
    return excluded_samples(task, samples, "")


def _first_batch(
    task: Task, config: Config, loss: Loss, facts: SystemInfo, skips: ExcludedSamples | None
) -> MicroBatch:
    """Read the first batch of a Task whose model has no shapes yet, for a Plan of another model.

    The generators are put back: the weights are drawn next, as if nothing had been read.
    """
    said = {k: v for k, v in config.set_options().items() if k.partition(".")[0] not in _OF_MODEL}
    with preserve_torch_rng(torch.device("cpu")):
        given = replace(_given(task, config, nn.Linear(1, 1), loss, skips), own_optimizer=True)
        plan = resolve(Config.from_options(said), facts, given).single_process()
        training = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
        try:
            return training.first()[1]
        finally:
            training.close()


_OF_MODEL = ("optim", "schedule", "average", "parallel", "activation_checkpointing", "compile")


def _given(
    task: Task, config: Config, model: nn.Module, loss: Loss, skips: ExcludedSamples | None
) -> TaskInfo:
    """Say of the Task what a Plan depends on."""
    reason = fit_class_weights(loss, remaining_data(task, skips), resolve_seed(config))
    return TaskInfo(
        train_samples=train_samples(task, skips),
        skips=skips,
        **_of_data(task),
        val_sets=tuple(task.val_sets()),
        val_batch_sizes=tuple(
            own["batch_size"]
            for data in task.val_sets().values()
            if (own := loader_settings(data)) and own["batch_size"]
        ),
        metrics=_directions(task),
        tables=table_metric_names(task.metrics),
        objects=tuple(n for n, each in task.metrics.items() if hasattr(each, "compute")),
        own_optimizer=task.optimizer is not None,
        own_schedule=task.schedule is not None,
        **param_info(model),
        not_splitting=_not_splitting(task, model, loss),
        adapters=has_adapters(model),
        blocks=bool(blocks_of(model)),
        convolutions=any(each.dim() == 4 for each in model.parameters()),
        called=loss.kind != "none",
        own_step=task.step is not None,
        batched=task.collate_fn is only_element,
        no_data=isinstance(task.train, NoData),
        loss=loss.label,
        evaluates_loss=not loss.is_in_training_only,
        loss_reason=reason,
        batch_norm=_has(model, BATCH_NORM),
        is_built=isinstance(task.model, nn.Module),
        blocks_by=cache(partial(select_wrap_units, model)),
    )


def _on_meta(task: Task, config: Config, facts: SystemInfo) -> AbstractContextManager[Any]:
    """Return a context for building shapes alone, where the values come from the first rank."""
    parallel = config.parallel
    others = facts.launched.rank > 0 or facts.launched.is_simulated
    meta = others and not isinstance(task.model, nn.Module) and bool(parallel.meta_init)
    return torch.device("meta") if meta else nullcontext()


def _of_data(task: Task) -> dict[str, Any]:
    """Say how the training data comes, in the words of Given."""
    return {
        "order": task.sampler,
        "batch_transform": name_of(task.batch_transform),
        "in_memory": is_in_memory(task.train, task),
        "is_stream": is_stream(task.train),
        "why_read_again": _why_read_again(task),
        "draws": loading_seed_info(task),
        "loader": loader_settings(task.train),
    }


def _why_read_again(task: Task) -> str:
    return find_state_problem(dataset_of(task.train, "train")) if is_stream(task.train) else ""


def train_samples(task: Task, skips: ExcludedSamples | None) -> int | None:
    """Count the samples of an epoch of training; None where a stream does not say."""
    if task.sampler is not None:
        return len(task.sampler)
    return count_samples(task.train, "train") if skips is None else skips.left


def _directions(task: Task) -> dict[str, Literal["min", "max"] | None]:
    """Say of each metric by its name whether smaller or larger is better, if it says."""
    losses: dict[str, Literal["min", "max"] | None] = dict.fromkeys(task.loss_names(), "min")
    return losses | {
        known: better
        for name, metric in task.metrics.items()
        for known, better in metric_modes(name, metric).items()
        if name not in table_metric_names(task.metrics)
    }


def _not_splitting(task: Task, model: nn.Module, loss: Loss) -> tuple[str, ...]:
    """Name what makes a cut batch give other numbers than the whole one."""
    kinds = {_why_not(each): not each.is_separable for _, each in named_losses(loss)} | {
        "the Task says its loss does not split": not task.loss_is_separable,
        "batch statistics are the micro-batch's": _has(model, BATCH_NORM),
        "dropout draws for each micro-batch": any(
            isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
            for module in model.modules()
        ),
    }
    return tuple(reason for reason, holds in kinds.items() if holds)


def _why_not(loss: Loss) -> str:
    """Say why a loss of a batch is not the mean over its parts, for one that does not split."""
    if loss.is_in_training_only:
        return "the model itself averages its losses over each micro-batch"
    return f"{loss.label} compares samples of a micro-batch with each other"


def _has(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in model.modules())


def apply_init_weights(planned: PreparedTask) -> InitReport | None:
    """Load the weights that the Task starts from into its model; None where it names none.

    A checkpoint that leaves frozen parameters out needs them too: they may come from there.

    Raises:
        CheckpointError: they cannot be read, or do not fit the model.
    """
    return load_init_weights(planned.model, planned.task.init)


def measure_task_activations(planned: PreparedTask) -> ActivationMemory | str:
    """Measure what the forward of one micro-batch keeps for its backward, or say why not."""
    task, plan, loss = planned.task, planned.plan, planned.loss
    if task.step is not None:
        return "the Task's own step decides what is run"
    if any(each.is_meta for each in planned.model.parameters()):
        return "parallel.meta_init built the shapes of the model, and a forward needs its values"
    of_teacher = () if loss.teacher is None else tuple(loss.teacher.modules())
    with preserve_modes(of_teacher):
        loss.to(plan.device)
        training = make_loader(task.train, "train", task=task, loss=loss, plan=plan, training=True)
        try:
            with torch_settings(plan):
                return measure_activations(planned.model, training, plan, tuple(task.keep_eval))
        except Exception as error:  # of a forward, which may raise anything; a plan needs no run
            return f"the first batch fails: {type(error).__name__}: {error}"
        finally:
            training.close()


def estimate_memory_per_rank(planned: PreparedTask, takes: MemoryEstimate) -> list[RankMemory]:
    """Return what each rank would hold of the model's state, for every way to share it."""
    model, plan = planned.model, planned.plan
    names = plan.parallel_wrap_policy or select_wrap_units(model, "auto").names
    hybrid = plan.parallel_shard_size if plan.parallel_shard == "hybrid" else 0
    return estimate_rank_memory(
        model,
        takes,
        blocks=[model.get_submodule(name) for name in names],
        ranks=plan.parallel_ranks,
        local=hybrid or planned.system.launched.local_size,
        precision=plan.precision,
    )


def data_splits(task: Task) -> dict[str, Any]:
    """Return each split of the data by name: "train", the validation sets, "test"."""
    splits = {"train": task.train, **task.val_sets()}
    return splits if task.test is None else {**splits, "test": task.test}


def check_split(split: str, known: Mapping[str, Any]) -> None:
    """Check that the task has such a split of data.

    Raises:
        ConfigError: it has not.
    """
    if split not in known:
        raise ConfigError(f"The task has no {split} data. {suggest_names(split, known)}")


def make_eval_loaders(planned: PreparedTask) -> dict[str, BatchLoader]:
    """Return the feed that measures each split of the data."""
    task = planned.task
    return {
        split: make_loader(data, split, task=task, loss=planned.loss, plan=planned.plan)
        for split, data in data_splits(task).items()
    }
