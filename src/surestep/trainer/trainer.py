"""The Trainer: a whole run by one call."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from surestep.config.config import Config
from surestep.engine.evaluate.predict import Predictions
from surestep.engine.step.callback import Callback
from surestep.engine.task.task import Task
from surestep.engine.value import Value
from surestep.record.run import Run, Which
from surestep.trainer.fit import fit
from surestep.trainer.planning import TaskOrigin
from surestep.trainer.prepare import prepare
from surestep.trainer.resume import Resume


class Trainer:
    """Train a task by a config, and measure it.

    Args:
        task: what is trained.
        config: what is asked.
        run: the run folder; `runs/run-<time>` where not said.
        resume: "auto", "never" or "must" go on in a folder that holds a run.
        allow: names of what may differ when a run goes on, such as ("optim.lr",).
        from_: a checkpoint of another run that a new one starts from, such as "runs/digits@200".
        callbacks: watchers.
        origin: where the Task came from, for the records.
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
        origin: TaskOrigin | None = None,
    ) -> None:
        self._prepare = partial(prepare, task, config, callbacks=callbacks, origin=origin)
        self.session = self._prepare(run=run, resume=resume, allow=allow, from_=from_)

    def fit(self) -> Run:
        """Train to the end of the run; the last weights stay in the model.

        Called again, it goes on where the run folder stands.

        Raises:
            NonFiniteError: the loss or a gradient was not finite; the state before it is saved.
            KeyboardInterrupt: Ctrl-C; the state after the step is saved.
            Stopped: SIGTERM, SIGUSR1 or SIGHUP; the state after the step is saved.
        """
        if self.session.closed:
            self.session = self._prepare(run=self.session.run.path)
        with self.session:
            return fit(self.session)

    def close(self) -> None:
        """Let the run folder go without training; `fit()` does so by itself."""
        self.session.close()

    def evaluate(self, part: str, which: Which = "best") -> dict[str, Value]:
        """Measure a part ("val", "test", ...) with the weights of a checkpoint."""
        return self.session.evaluate_checkpoint(part, which)

    def predict(
        self, part: str, which: Which = "best", *, mc_dropout: int | None = None
    ) -> Predictions:
        """Return what the weights of a checkpoint say of each sample of a part, in order.

        Args:
            part: "train", "test" or a validation set's name.
            which: the best checkpoint, the last, or the average of the last.
            mc_dropout: passes with dropout on, for mean and spread; None is one without.
        """
        return self.session.predict(part, which, mc_dropout=mc_dropout)
