"""surestep: `Trainer.fit` on the same folder again.

It writes in a thread, so a save is in flight from the temporary folder to its rename.
"""

import os
import sys
from functools import partial
from typing import Any

from torch import nn

import surestep
from benchmarks.reliability.job import BATCH, LR, SAVE_EVERY, SEED, STEPS, Job
from benchmarks.reliability.reporter import Reporter


class Watch(surestep.Callback):
    """Reports what was loaded, and each step."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter

    def on_start(self, state: Any) -> None:
        self.reporter.loaded(state.progress.step, state.model, state.optimizer)

    def on_step(self, state: Any, result: Any) -> None:
        self.reporter.step(result.step, state.model, state.optimizer)


def report_saves(reporter: Reporter, event: str, args: tuple[Any, ...]) -> None:
    if event not in ("os.mkdir", "os.rename"):
        return
    folder, name = os.path.split(os.fspath(args[0]))
    # The first save tries before there is a folder of checkpoints, and again when there is one.
    if name.startswith(".tmp-step-") and os.path.isdir(folder):
        (reporter.begin_save if event == "os.mkdir" else reporter.end_save)()


def train(job: Job, reporter: Reporter) -> None:
    """Resume the run and train to the end."""
    sys.addaudithook(partial(report_saves, reporter))
    task = surestep.Task(job.model, nn.CrossEntropyLoss(), job.data())
    config = surestep.Config(
        max_steps=STEPS,
        batch_size=BATCH,
        seed=SEED,
        optim=surestep.Optim(lr=LR),
        checkpoint=surestep.Checkpoint(every=f"{SAVE_EVERY} steps"),
        logging=surestep.Logging(progress="quiet"),
    )
    surestep.Trainer(task, config, run=job.folder, callbacks=[Watch(reporter)]).fit()
