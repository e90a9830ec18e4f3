"""The whole run: steps with evaluations, checkpoints and early stopping."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from surestep.base.errors import (
    CheckpointError,
    NonFiniteError,
    Preempted,
    StatusWriteError,
    SurestepError,
    WorkerError,
)
from surestep.config.duration import Duration, PeriodicTrigger
from surestep.engine.device import ran_out
from surestep.engine.distributed.shards import is_model_sharded
from surestep.engine.evaluate.evaluate import EvaluationInterrupted
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.step.callback import Request
from surestep.engine.step.train_step import StepResult
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.record.run import Run
from surestep.trainer.session import Session
from surestep.trainer.signals import interruptible
from surestep.trainer.summary import ALL_DONE
from surestep.trainer.top_k import TopK


def fit(session: Session) -> Run:
    """Run a session to its end; evaluate, save and stop early as its Plan says.

    Raises:
        KeyboardInterrupt: Ctrl-C; the step is saved, but for a second Ctrl-C.
        Stopped: SIGTERM, SIGUSR1 or SIGHUP; the step is saved.
        WorkerError: a data worker died; the last step is saved.
        UntoldError: how the run ended cannot be written; what it saved is there.
    """
    if session.finished:
        return session.run
    with interruptible(session) as came:
        try:
            is_done = _train(session)
            if not is_done and not came:  # the signal came to another rank
                came.append(session.loop.interrupted)
            where = _end(session, came) if is_done else _stop(session, came[0])
        except KeyboardInterrupt as error:
            session.loop.world.failed(error)  # what is still written waits for no rank for ever
            if session.run.status["status"] == "running":
                _stop_at_once(session, came[0] if came else "Ctrl-C")
            raise
        except StatusWriteError:  # to write another end would fail, or be none of this run
            raise
        except NonFiniteError as error:
            error.add_note(_saved_before(session))
            _fail(session, error, str(error))
            raise
        except WorkerError as error:
            session.print_line(str(error))  # at once, since to save may take long
            error.add_note(_saved_before(session))
            _fail(session, error, f"{type(error).__name__}: {error}", resumable=True)
            raise
        except Exception as error:
            _fail(session, error, f"{type(error).__name__}: {error}")
            if ran_out(error):
                assert session.loop.out_of_memory is not None
                raise session.loop.out_of_memory(error) from error
            raise
    if came:
        session.close()
        raise KeyboardInterrupt if came[0] == "Ctrl-C" else Preempted(where)
    return session.run


@dataclass
class _LastHandled:
    """The step that was last seen to, and whether a callback asked to save the one after it."""

    step: int
    asked: bool = False


def _train(session: Session) -> bool:
    """Train, evaluate and save; say whether the run came to its end."""
    plan, loop = session.plan, session.loop
    has_val = bool(session.task.val_sets())
    if has_val:
        evaluate = partial(_evaluate, session, TopK(session))
        loop.handlers[Request.EVALUATE] = evaluate
        _take_up(session, evaluate)
    evaluating = _cadence(session, plan.validation_every)
    saving = _cadence(session, plan.checkpoint_every)
    cycles = frozenset(cycle_ends(plan.schedule))
    seen = _LastHandled(session.state.progress.step)
    loop.handlers[Request.SAVE] = partial(_save_as_asked, session, seen)
    if has_val and plan.validation_on_start and not session.state.progress.step:
        loop.start()
        evaluate()
    for result in session.steps():
        items, now = session.state.progress.items, loop.world.seconds
        if result.step <= seen.step:  # the run went back
            evaluating.start(result.progress_before.items, now)
            saving.start(result.progress_before.items, now)
        seen.step, ended = result.step, result.epoch + 1 if loop.ends_epoch else 0
        evaluates = has_val and evaluating.is_due(result.step, items, now, ended)
        saves = saving.is_due(result.step, items, now, ended) or _ends_cycle(result, cycles)
        saves, seen.asked = saves or seen.asked, False
        if (evaluates or saves) and not _stays(session):
            continue
        if evaluates:
            evaluate()
        if saves and not session.is_saved:
            session.saving.save_async()
    if has_val and not loop.interrupted:
        evaluate()
    if loop.interrupted:
        loop.check_workers()
        return False
    session.saving.flush()
    return True


def _save_as_asked(session: Session, seen: _LastHandled) -> None:
    """Save; within a step only after the evaluation that may be due there, which it then holds."""
    if session.state.progress.step == seen.step:
        session.saving.save_async()
    else:
        seen.asked = True


def _take_up(session: Session, evaluate: Callable[[], None]) -> None:
    """Do first what was due when the run was stopped."""
    if session.state.best.is_due:
        evaluate()
    elif session.is_evaluated:
        _stop_early(session)


def _stays(session: Session) -> bool:
    """Read what the steps left; say whether the run did not go back for it."""
    place = session.state.progress
    session.loop.log_point()
    return session.state.progress is place


def _ends_cycle(result: StepResult, cycles: frozenset[int]) -> bool:
    """Say whether a cycle of the schedule ended with this step; one that was skipped ends none."""
    return result.outcome.took_step and result.progress_before.steps_taken + 1 in cycles


def _cadence(session: Session, duration: Duration | None) -> PeriodicTrigger:
    return PeriodicTrigger(
        duration,
        session.plan.steps_per_epoch,
        items=session.state.progress.items,
        seconds=session.loop.world.seconds,
    )


def _evaluate(session: Session, ranking: TopK) -> None:
    """Evaluate, once a step; save what is among the best; stop early where that is due."""
    if session.is_evaluated:
        return
    session.state.best.is_due = True
    try:
        session.evaluate()
    except EvaluationInterrupted:
        session.print_line("The evaluation was left; the run does it first when it goes on.")
        return
    if ranking.is_top_k():
        session.saving.save_async()
    _stop_early(session)


def _stop_early(session: Session) -> None:
    plan, standing = session.plan, session.state.best
    patience = plan.early_stop_patience
    if patience is not None and standing.since_best >= patience:
        best = "not a number"
        if standing.best is not None:
            best = f"no better than {standing.best:.4g} (step {standing.best_step})"
        session.loop.stopping = (
            f"early stop: {plan.validation_metric} is {best} after {patience} "
            f"evaluation{'s' if patience > 1 else ''}"
        )
        session.print_line(session.loop.stopping)


def _end(session: Session, came: list[str]) -> str:
    reason = session.loop.stopping
    if reason is None or reason in came:
        reason = ALL_DONE
    session.end("finished", reason=reason)
    session.loop.world.barrier()  # what the first rank wrote is what the others read next
    if is_model_sharded(session.model) and not session.run.config["recipe"]:
        path = str(session.run.path)
        session.print_line(
            "The model that was given holds parts of its parameters now. Load the whole weights "
            f"into a new one: surestep.Run({path!r}).load_model(model). Or write them as one file: "
            f"surestep ckpt export {shlex.quote(path)} weights.safetensors"
        )
    if not came:
        return ""
    late = f"{session.run.path} was finished when {came[0]} came."
    session.print_line(late)
    return late


def _stop(session: Session, name: str) -> str:
    """Save, and write that the run can go on; launchers swallow exit codes."""
    session.saving.flush()
    path = session.saving.path
    session.end("stopped", reason=name, resumable=True)
    session.loop.world.barrier()
    where = f"Stopped after step {session.state.progress.step}; saved as {path}."
    session.print_line(where)
    return f"{name}: {where} The same call goes on from there."


def _stop_at_once(session: Session, name: str) -> None:
    """Write whether the last step was saved, and say which checkpoint is the newest.

    That is looked for in the folder: what told of it may have been cut off by the second signal.
    """
    session.saving.wait()
    step, there = session.state.progress.step, list_checkpoints(session.run.checkpoints)
    was = "was" if there and step_of(there[-1]) == step else "was not"
    session.end("stopped", reason=f"{name}, then Ctrl-C: this step {was} saved", resumable=True)
    saved = f"the newest checkpoint is {there[-1]}" if there else "no checkpoint was written yet"
    session.print_line(f"Stopped at once after step {step}; {saved}.")


def _fail(session: Session, error: Exception, reason: str, **more: Any) -> None:
    """Write how the run ended; where that fails too, the error that ended it is what is told."""
    session.loop.world.failed(error)  # first: the end waits for what all ranks are writing
    try:
        session.end("failed", reason=reason, **more)
    except SurestepError as late:
        error.add_note(str(late))


def _saved_before(session: Session) -> str:
    """Save the state, which is that before a step that failed; return where, or why not."""
    try:
        return f"Saved as {session.ensure_saved()}."
    except CheckpointError as error:
        return f"The state before it could not be saved: {error}"
