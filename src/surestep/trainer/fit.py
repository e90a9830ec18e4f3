"""The whole run: steps with evaluations, checkpoints and early stopping."""

import time
from functools import partial

from surestep.base.duration import Cadence, Duration
from surestep.base.errors import NonFiniteError
from surestep.engine.callback import Request
from surestep.engine.measure.memory import ran_out
from surestep.engine.schedule.rate import cycle_ends
from surestep.engine.step import StepResult
from surestep.record.run import Run
from surestep.trainer.session import Session
from surestep.trainer.signals import interruptible


def fit(session: Session) -> Run:
    """Run a session to its end; evaluate, save and stop early as its Plan says."""
    if session.finished:
        return session.run
    try:
        with interruptible(session) as interrupted:
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
            session.saving.begin()
        if cycles and _ends_cycle(result, cycles) and not session.is_saved:
            session.saving.begin()
    if not loop.interrupted:
        if has_val:
            _evaluate(session)
        session.saving.finish()


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
        session.saving.begin()
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
