"""The parts that evaluate, save and stop early in `fit()`, by its options.

In the loop of a user, only the user does this: these parts then do what others request.
"""

from surestep.config.duration import Duration, PeriodicTrigger
from surestep.engine.evaluate.evaluate import EvaluationInterrupted
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.state.state import State
from surestep.engine.step.callback import Request, Stop
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult
from surestep.engine.value import Metrics
from surestep.trainer.best_metric import TopK
from surestep.trainer.session import Session


class StepTrigger:
    """Decides at which steps of a run a periodic action is due."""

    def __init__(
        self, session: Session, duration: Duration | None, *, least_s: float = 0.0
    ) -> None:
        self._loop = session.loop
        self._trigger = PeriodicTrigger(duration, session.plan.steps_per_epoch, least_s=least_s)
        self.start()

    def start(self) -> None:
        """Count items and time from here."""
        self._trigger.start(self._loop.state.progress.items, self._loop.world.seconds)

    def is_due(self, result: StepResult) -> bool:
        """Return whether a period ended with the last step; if so, begin the next one."""
        loop, items = self._loop, self._loop.state.progress.items
        ended = result.epoch + 1 if loop.ends_epoch else 0
        return self._trigger.is_due(result.step, items, loop.world.seconds, ended)


def count_evaluations(session: Session) -> int | None:
    """Return how many evaluations a run makes that nothing ends early; None if it is not known."""
    plan = session.plan
    trigger, last = PeriodicTrigger(plan.validation_every, plan.steps_per_epoch), plan.total_steps
    due, before = trigger.count_due(last), trigger.count_due(last - 1)
    if due is None:
        return None
    return due + (due == before) + bool(plan.validation_on_start)


class ScheduledEvaluation(Part):
    """Evaluates all validation sets at `validation.every`, at the end, and on request.

    A step is evaluated once. An evaluation that a resumed run still has to do comes first.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._trigger = StepTrigger(session, session.plan.validation_every)

    def on_start(self, state: State) -> Request | None:
        """Request an evaluation before the first step, after all parts have started."""
        self._trigger.start()
        is_first = self._session.plan.validation_on_start and not state.progress.step
        return Request.EVALUATE if self._acts and (state.best.is_due or is_first) else None

    def on_between(self, state: State, result: StepResult) -> None:
        """Evaluate if this is due, after a log point."""
        loop = self._session.loop
        if self._acts and self._trigger.is_due(result):
            place = state.progress
            loop.log.take()
            if state.progress is place:  # it triggered no rollback
                self._evaluate()

    def on_request(self, state: State, request: Request) -> None:
        """Evaluate, if this was requested."""
        if request is not Request.EVALUATE:
            return
        if self._acts:
            self._evaluate()
        else:
            self._session.evaluate()

    def on_rollback(self, state: State) -> None:
        """Count from the step that the run went back to."""
        self._trigger.start()

    def on_last(self, state: State) -> None:
        """Evaluate the last step."""
        if self._acts:
            self._evaluate()

    @property
    def _acts(self) -> bool:
        return self._session.is_fitting and bool(self._session.task.val_sets())

    def _evaluate(self) -> None:
        session = self._session
        if session.evaluations.is_done:
            return
        session.state.best.is_due = True
        try:
            session.evaluate()
        except EvaluationInterrupted:
            session.messages.print_line("Evaluation interrupted; it runs first after resume.")


class EarlyStopping(Part):
    """Ends the run if the metric did not improve for `early_stop.patience` evaluations."""

    def __init__(self, session: Session) -> None:
        self._session, self._patience = session, session.plan.early_stop_patience

    def on_start(self, state: State) -> Stop | None:
        """Stop a run that was killed between its last evaluation and its end."""
        return self._check() if self._session.evaluations.is_done else None

    def on_evaluate(self, state: State, metrics: Metrics) -> Stop | None:
        """Stop if this evaluation is one too many."""
        return self._check()

    def _check(self) -> Stop | None:
        session, best, n = self._session, self._session.state.best, self._patience
        if n is None or not session.is_fitting or best.since_best < n:
            return None
        evaluations = f"{n} evaluation{'s' if n > 1 else ''}"
        found = f"was not finite in {evaluations}"
        if best.best is not None:
            found = (
                f"did not improve on {best.best:.4g} in {evaluations} since step {best.best_step}"
            )
        reason = f"early stop: {session.plan.validation_metric} {found}"
        session.messages.print_line(reason)
        return Stop(reason)


class ScheduledSaving(Part):
    """Saves at `checkpoint.every`, at the ends of cycles, the best steps, and on request.

    A request within a step is done after its evaluation, so that the checkpoint has the metrics.
    """

    def __init__(self, session: Session) -> None:
        plan = session.plan
        self._session = session
        least_s = plan.checkpoint_min_seconds or 0.0
        self._trigger = StepTrigger(session, plan.checkpoint_every, least_s=least_s)
        self._cycles = frozenset(cycle_ends(plan.schedule))
        self._last_step, self._is_requested = session.state.progress.step, False
        self._top_k: TopK | None = None

    def on_start(self, state: State) -> None:
        """Count from the first step of this process."""
        self._trigger.start()

    def on_evaluate(self, state: State, metrics: Metrics) -> None:
        """Save a step that is among the best, with what other parts did at its evaluation."""
        session = self._session
        if session.is_fitting:
            self._top_k = self._top_k or TopK(session.loop, session.run.checkpoints)
            if self._top_k.is_top_k():
                session.saving.save_async()

    def on_between(self, state: State, result: StepResult) -> None:
        """Save if this is due or requested, after a log point."""
        session, place = self._session, state.progress
        self._last_step = result.step
        before = result.progress_before
        ends_cycle = result.outcome.took_step and before.steps_taken + 1 in self._cycles
        saves = self._trigger.is_due(result) or self._is_requested or ends_cycle
        self._is_requested = False
        if not saves:
            return
        session.loop.log.take()
        if state.progress is place and not session.saving.is_current:
            session.saving.save_async()

    def on_request(self, state: State, request: Request) -> None:
        """Save, if this was requested."""
        if request is not Request.SAVE:
            return
        if self._session.is_fitting and state.progress.step != self._last_step:
            self._is_requested = True
        else:
            self._session.saving.save_async()

    def on_rollback(self, state: State) -> None:
        """Count from the step that the run went back to."""
        self._trigger.start()
