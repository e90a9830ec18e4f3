"""`Trainer.fit()`: the whole run, with evaluations, checkpoints and early stopping."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from surestep.base.config import Config
from surestep.base.duration import Cadence, Duration
from surestep.base.errors import NonFiniteError
from surestep.engine.callback import Callback, Request
from surestep.engine.evaluation.predict import Predictions
from surestep.engine.measure.memory import ran_out
from surestep.engine.metrics import Value
from surestep.engine.schedule.rate import cycle_ends
from surestep.engine.step import StepResult
from surestep.engine.task import Task
from surestep.record.run import Run, Which
from surestep.trainer.planning import Origin
from surestep.trainer.prepare import Resume, prepare
from surestep.trainer.session import Session


class Trainer:
    """Train a task by a config, and measure it.

    Args:
        task: what is trained.
        config: what is asked.
        run: the run folder; `runs/run-<time>` where not said.
        resume: "auto", "never" or "must" go on in a folder that holds a run.
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
        callbacks: Sequence[Callback] = (),
        origin: Origin | None = None,
    ) -> None:
        self._prepare = partial(prepare, task, config, callbacks=callbacks, origin=origin)
        self.session = self._prepare(run=run, resume=resume)

    def fit(self) -> Run:
        """Train to the end of the run; the last weights stay in the model.

        Called again, it goes on where the run folder stands.

        Raises:
            NonFiniteError: the loss or a gradient was not finite; the state before it is saved.
            KeyboardInterrupt: Ctrl-C; the state after the step is saved.
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
        return self.session.measure(part, which)

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


def fit(session: Session) -> Run:
    """Run a session to its end; evaluate, save and stop early as its Plan says."""
    if session.finished:
        return session.run
    try:
        with _interruptible(session) as interrupted:
            _train(session)
        if interrupted:
            _stop(session)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        if session.run.status["status"] == "running":
            session.end("stopped", reason="Ctrl-C, twice: nothing was saved since the last time")
        raise
    except NonFiniteError as error:
        path = session.save()
        session.end("failed", reason=str(error))
        error.add_note(f"Saved as {path}.")
        raise
    except Exception as error:
        session.end("failed", reason=f"{type(error).__name__}: {error}")
        if ran_out(error):
            assert session.loop.out_of_memory is not None
            raise session.loop.out_of_memory(error) from error
        raise
    session.end("finished", reason=session.loop.stopping or "all steps are done")
    return session.run


def _train(session: Session) -> None:
    plan, loop = session.plan, session.loop
    has_val = bool(session.task.val_sets())
    if has_val:
        loop.act[Request.EVALUATE] = partial(_evaluate, session)
    evaluating = _cadence(session, plan.validation_every)
    saving = _cadence(session, plan.checkpoint_every)
    cycles = frozenset(cycle_ends(plan.schedule))
    for result in session.steps():
        items, now = session.state.place.items, time.monotonic()
        ended = result.epoch + 1 if loop.ends_epoch else 0
        if has_val and evaluating.due(result.step, items, now, ended):
            _evaluate(session)
        if saving.due(result.step, items, now, ended) and not session.is_saved:
            session.save()
        if cycles and _ends_cycle(result, cycles) and not session.is_saved:
            session.save()
    if not loop.interrupted:
        if has_val:
            _evaluate(session)
        if not session.is_saved:
            session.save()


def _ends_cycle(result: StepResult, cycles: frozenset[int]) -> bool:
    """Say whether a cycle of the schedule ended with this step; one that was skipped ends none."""
    return result.outcome.took_step and result.before.steps_taken + 1 in cycles


def _cadence(session: Session, duration: Duration) -> Cadence:
    return Cadence(
        duration,
        session.plan.steps_per_epoch,
        items=session.state.place.items,
        seconds=time.monotonic(),
    )


def _evaluate(session: Session) -> None:
    """Evaluate, once a step; keep the best; stop where nothing got better for long enough."""
    if session.is_evaluated:
        return
    session.evaluate()
    plan, standing = session.plan, session.state.standing
    if session.is_best and plan.checkpoint_keep_best:
        session.save()
    patience = plan.early_stop_patience
    if patience is not None and standing.since_best >= patience:
        best = "not a number"
        if standing.best is not None:
            best = f"no better than {standing.best:.4g} (step {standing.best_step})"
        session.loop.stopping = (
            f"early stop: {plan.validation_metric} is {best} after {patience} evaluations"
        )
        session.say(session.loop.stopping)


def _stop(session: Session) -> None:
    path = session.save()
    session.end("stopped", reason="Ctrl-C")
    session.say(f"Stopped after step {session.state.place.step}; saved as {path}.")
    session.close()


@contextmanager
def _interruptible(session: Session) -> Iterator[list[str]]:
    """Let the first Ctrl-C stop after the step, and the second one at once."""
    interrupted: list[str] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        if interrupted:
            raise KeyboardInterrupt
        interrupted.append("Ctrl-C")
        session.loop.interrupted = True
        session.loop.stopping = "Ctrl-C"
        session.say("Ctrl-C: stopping after this step. Once more stops at once.")

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
