"""Measure a run that is not open: its checkpoint, on a split of its data."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from surestep.config.config import Config
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.dataset import count_samples
from surestep.engine.evaluate.evaluate import evaluate_parts
from surestep.engine.evaluate.mc_dropout import check_passes
from surestep.engine.evaluate.predict import Predictions, make_predict_loader, predict
from surestep.engine.model.precision import autocast, place_model, torch_settings
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task
from surestep.engine.value import Value
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.run import Run, Which
from surestep.trainer.planning import (
    PreparedTask,
    apply_init_weights,
    check_split,
    data_splits,
    make_eval_loaders,
    plan_task,
)


def measure_run(
    run: Run,
    task: Task,
    config: Config,
    *,
    split: str,
    which: Which | int,
    warn: Callable[[str], object] | None = None,
) -> tuple[CheckpointInfo, dict[str, Value]]:
    """Return which checkpoint was measured, and its metrics by "split/metric".

    Nothing is written, and nobody needs to hold the folder.

    Args:
        run: whose weights.
        task: built as it was trained.
        config: as it was trained with.
        split: "train", "test", a validation set's name, or "val" for all of those.
        which: the best checkpoint, the last, or that of a step.
        warn: called with the reason why a loss is not finite.

    Raises:
        ConfigError: there is no such split.
        CheckpointError: there is no checkpoint, or it does not fit.
    """
    planned = plan_task(task, config.single_process())
    planned = replace(planned, plan=planned.plan.single_process())  # whoever else was started
    available = make_eval_loaders(planned)
    names = list(task.val_sets()) if split == "val" else [split]
    for name in names or [split]:
        check_split(name, available)
    model, saved = load_checkpoint_model(run, planned, which)
    planned.loss.to(planned.plan.device)
    with torch_settings(planned.plan):
        metrics = evaluate_parts(
            model,
            {name: available[name] for name in names},
            planned.loss,
            task.metrics,
            autocast=autocast(planned.plan),
            grad_off=torch.inference_mode,
            warn=warn,
        )
    return saved, metrics


def load_checkpoint_model(
    run: Run, planned: PreparedTask, which: Which | int
) -> tuple[nn.Module, CheckpointInfo]:
    """Return the model on its device with the weights of a checkpoint, and which it was.

    Raises:
        CheckpointError: there is none, or it does not fit.
    """
    chosen = run.choose(which)
    if chosen.needs_base:
        apply_init_weights(planned)
    model = place_model(planned.model, planned.plan)
    chosen.load(model)
    return model, chosen.saved


Watch = Callable[[int, int | None], object]


def predict_run(
    run: Run,
    task: Task,
    config: Config,
    *,
    split: str = "test",
    which: Which | int = "best",
    mc_dropout: int | None = None,
    watch: Watch | None = None,
    folder: Path | None = None,
) -> tuple[CheckpointInfo, Predictions]:
    """Return which checkpoint predicted, and what it says of each sample of a split, in order.

    Nothing is written, and nobody needs to hold the folder.

    Args:
        run: whose weights.
        task: built as it was trained.
        config: as it was trained with.
        split: "train", "test", or a validation set's name.
        which: the best checkpoint, the last, the average of the last, or that of a step.
        mc_dropout: passes with dropout on; None is one without.
        watch: called after each batch with the samples done, and how many there are if known.
        folder: of the temporary files of what does not fit into memory.

    Raises:
        ConfigError: there is no such split, or fewer than two passes.
        TaskError: no dropout to sample from, or outputs without a row for each sample.
        CheckpointError: there is no checkpoint, or it does not fit.
    """
    check_passes(mc_dropout)
    planned = plan_task(task, config.single_process())
    feed = open_feed(planned.task, planned.plan, split)
    model, saved = load_checkpoint_model(run, planned, which)
    total = count_samples(data_splits(planned.task)[split], split) if watch is not None else None
    with torch_settings(planned.plan):
        predictions = predict(
            model,
            feed,
            planned.loss,
            autocast=autocast(planned.plan),
            passes=mc_dropout,
            grad_off=torch.inference_mode,
            watch=None if watch is None else lambda done: watch(done, total),
            folder=folder,
        )
    return saved, predictions


def open_feed(task: Task, plan: Plan, split: str) -> BatchLoader:
    """Return the feed that predicts on a split.

    Raises:
        ConfigError: there is no such split.
    """
    splits = data_splits(task)
    check_split(split, splits)
    return make_predict_loader(splits[split], split, task=task, plan=plan)
