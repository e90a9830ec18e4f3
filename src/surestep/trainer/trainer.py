"""The Trainer: a full run in one call."""

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from surestep.base.arguments import suggest_arguments
from surestep.base.errors import ConfigError
from surestep.config.config import Config, argument_instead
from surestep.engine.evaluate.predict import Predictions
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.engine.value import Metrics
from surestep.record.run import Run, Which
from surestep.tracking.tracker import Tracker
from surestep.trainer.fit import fit
from surestep.trainer.planning import TaskOrigin
from surestep.trainer.prepare import prepare
from surestep.trainer.resume import Resume
from surestep.trainer.session import Session


@suggest_arguments(ConfigError, argument_instead)
class Trainer:
    """Train a task with a config, and evaluate it.

    Creating a Trainer checks the task and opens the run folder.

    Args:
        task: what to train.
        config: the options.
        run: run folder; the default is `runs/run-<time>`. An address, such as
            "s3://bucket/run", is a mirror: the run is fetched from it and copied to it.
        resume: if the folder has a run, "auto" resumes it and "never" raises an error; "must"
            raises an error if there is no run to resume.
        allow: names of what may differ from the run on resume, such as ("optim.lr",).
        from_: a checkpoint of another run to start from, such as "runs/digits@200".
        callbacks: called at the hooks of the run.
        trackers: get what the run records, beside those of `logging.trackers`.
        origin: where the Task came from, for the records.

    Raises:
        ConfigError, TaskError, DataError: an option is invalid, or the task does not fit together.
        RunError: the folder is locked, cannot be written, or has a run with a different config.
        CheckpointError: there is no checkpoint to resume from, and there must be.

    Example:
        >>> import torch
        >>> import surestep
        >>> x, y = torch.randn(64, 4), torch.randint(0, 3, (64,))
        >>> task = surestep.Task(torch.nn.Linear(4, 3), loss="multiclass", train=(x, y), val=(x, y))
        >>> config = surestep.Config(epochs=2, batch_size=16, logging={"progress": "quiet"})
        >>> run = surestep.Trainer(task, config, run="runs/trained").fit()
        >>> run.last.step
        8
    """

    def __init__(
        self,
        task: Task,
        config: Config,
        *,
        run: str | Path | None = None,
        resume: Resume = "auto",
        allow: Sequence[str] = (),
        from_: str | None = None,
        callbacks: Sequence[Callback] = (),
        trackers: Sequence[Tracker] = (),
        origin: TaskOrigin | None = None,
    ) -> None:
        given: dict[str, Any] = {"callbacks": callbacks, "trackers": trackers, "origin": origin}
        self._prepare = partial(inspect.unwrap(prepare), task, config, **given)
        self.session: Session = self._prepare(run=run, resume=resume, allow=allow, from_=from_)

    def fit(self) -> Run:
        """Train to the end of the run, or resume it; the last weights stay in the model.

        Returns:
            The run folder.

        Raises:
            NonFiniteError: the loss or a gradient is not finite; the state before it is saved.
            KeyboardInterrupt: Ctrl-C; the state after the step is saved.
            Preempted: SIGTERM, SIGUSR1 or SIGHUP; the state after the step is saved.
        """
        if self.session.closed:
            self.session = self._prepare(run=self.session.run.path)
        with self.session:
            return fit(self.session)

    def close(self) -> None:
        """Unlock the run folder without training; `fit()` does this by itself."""
        self.session.close()

    def evaluate(self, split: str, which: Which = "best") -> Metrics:
        """Evaluate the weights of a checkpoint on one split of the data.

        Args:
            split: "val", "test", "train" or the name of a validation set.
            which: the best checkpoint, the last, or the newest average.

        Returns:
            The loss and the metrics, by "split/metric", as numbers on the host; `.tables` has
            confusion matrices and the like.

        Raises:
            ConfigError: there is no such split.
            CheckpointError: there is no such checkpoint, or it is corrupted.
        """
        return self.session.evaluate_checkpoint(split, which)

    def predict(
        self, split: str, which: Which = "best", *, mc_dropout: int | None = None
    ) -> Predictions:
        """Predict every sample of one split with the weights of a checkpoint.

        Args:
            split: "train", "test" or the name of a validation set.
            which: the best checkpoint, the last, or the newest average.
            mc_dropout: number of passes with dropout on; None is one pass without dropout.

        Returns:
            numpy arrays by name ("index", "output", ...), one row per sample, in stored order.

        Raises:
            ConfigError: there is no such split.
            TaskError: the model has no dropout, or the outputs do not have one row per sample.
            CheckpointError: there is no such checkpoint, or it is corrupted.
        """
        return self.session.predict(split, which, mc_dropout=mc_dropout)
