"""Predict with the weights of a run: open, or closed."""

from collections.abc import Callable
from pathlib import Path

import torch

from surestep.base.config import Config
from surestep.engine.data.dataset import samples_of
from surestep.engine.data.feed import Feed
from surestep.engine.evaluation.dropout import check_passes
from surestep.engine.evaluation.predict import Predictions, predict, prediction_feed
from surestep.engine.plan import Plan
from surestep.engine.precision import autocast, process_settings
from surestep.engine.task import Task
from surestep.record.checkpoint.listing import Saved
from surestep.record.run import Run, Which
from surestep.trainer.measure import loaded
from surestep.trainer.planning import check_part, data_of, plan_task

Watch = Callable[[int, int | None], object]


def predict_run(
    run: Run,
    task: Task,
    config: Config,
    *,
    part: str = "test",
    which: Which | int = "best",
    mc_dropout: int | None = None,
    watch: Watch | None = None,
    folder: Path | None = None,
) -> tuple[Saved, Predictions]:
    """Return which checkpoint predicted, and what it says of each sample of a part, in order.

    Nothing is written, and nobody needs to hold the folder.

    Args:
        run: whose weights.
        task: built as it was trained.
        config: as it was trained with.
        part: "train", "test", or a validation set's name.
        which: the best checkpoint, the last, the average of the last, or that of a step.
        mc_dropout: passes with dropout on; None is one without.
        watch: called after each batch with the samples done, and how many there are if known.
        folder: of the temporary files of what does not fit into memory.

    Raises:
        ConfigError: there is no such part, or fewer than two passes.
        TaskError: no dropout to sample from, or outputs without a row for each sample.
        CheckpointError: there is no checkpoint, or it does not fit.
    """
    check_passes(mc_dropout)
    planned = plan_task(task, config.alone())
    feed = open_feed(planned.task, planned.plan, part)
    model, saved = loaded(run, planned, which)
    total = samples_of(data_of(planned.task)[part], part) if watch is not None else None
    with process_settings(planned.plan):
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


def open_feed(task: Task, plan: Plan, part: str) -> Feed:
    """Return the feed that predicts on a part.

    Raises:
        ConfigError: there is no such part.
    """
    parts = data_of(task)
    check_part(part, parts)
    return prediction_feed(parts[part], part, task=task, plan=plan)
