"""Predict with the weights of a run: open, or closed."""

from collections.abc import Callable
from pathlib import Path

import torch

from surestep.config.config import Config
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.data.dataset import count_samples
from surestep.engine.evaluate.mc_dropout import check_passes
from surestep.engine.evaluate.predict import Predictions, make_predict_loader, predict
from surestep.engine.model.precision import autocast, torch_settings
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task
from surestep.record.checkpoint.state_json import CheckpointInfo
from surestep.record.run import Run, Which
from surestep.trainer.evaluate_run import load_checkpoint_model
from surestep.trainer.planning import check_split, data_splits, plan_task

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
