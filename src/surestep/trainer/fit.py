"""Train a session to its end, and write how it ended."""

import shlex
from typing import Any

from surestep.base.errors import (
    CheckpointError,
    NonFiniteError,
    Preempted,
    StatusWriteError,
    SurestepError,
    WorkerError,
)
from surestep.engine.distributed.shards import is_model_sharded
from surestep.engine.distributed.stop_signals import CTRL_C
from surestep.record.checkpoint.discovery import list_checkpoints, step_of
from surestep.record.run import Run
from surestep.record.run_writer import describe_error_end
from surestep.trainer.session import Session
from surestep.trainer.signals import resume_hint, stop_after_step
from surestep.trainer.summary import ALL_DONE


def fit(session: Session) -> Run:
    """Train a session to its end; evaluate, save and stop early as its Plan says.

    Raises:
        KeyboardInterrupt: Ctrl-C; the step is saved, except after a second Ctrl-C.
        Preempted: SIGTERM, SIGUSR1 or SIGHUP; the step is saved.
        WorkerError: a data worker died; the last step is saved.
        StatusWriteError: the end of the run cannot be written; its checkpoints are unchanged.
    """
    if session.finished:
        return session.run
    with stop_after_step(session) as received:
        try:
            is_done = _train(session)
            if not is_done and not received:  # another rank received the signal
                received.append(session.loop.requests.interrupted)
            message = _finish(session, received) if is_done else _stop(session, received[0])
        except KeyboardInterrupt as error:
            session.loop.world.failed(error)  # so that no pending save waits for another rank
            if session.run.status["status"] == "running":
                _stop_at_once(session, received[0] if received else CTRL_C)
            raise
        except StatusWriteError:
            raise
        except (NonFiniteError, WorkerError) as error:
            is_worker = isinstance(error, WorkerError)
            if is_worker:
                session.messages.print_line(str(error))  # now, since saving may take long
            error.add_note(_save_before(session))
            reason = f"{type(error).__name__}: {error}" if is_worker else str(error)
            saved = bool(list_checkpoints(session.run.checkpoints))
            _fail(session, error, reason, **({"resumable": saved} if is_worker else {}))
            raise
        except Exception as error:
            _fail(session, error, describe_error_end(error)[1])
            if (explained := session.loop.parts.explain(error)) is not None:
                raise explained from error
            raise
    if received:
        session.close()
        if received[0] == CTRL_C:
            raise KeyboardInterrupt
        raise Preempted(message, reason=received[0], is_printed=True)
    return session.run


def _train(session: Session) -> bool:
    """Train; return whether all steps are done."""
    loop = session.loop
    session.start_fit()
    for _ in session.steps():
        pass  # the parts evaluate and save between the steps
    if not loop.requests.interrupted:
        loop.parts.call("on_last")
    if loop.requests.interrupted:
        loop.requests.check_workers()
        return False
    session.saving.flush()
    return True


def _finish(session: Session, received: list[str]) -> str:
    reason = session.loop.requests.stopping
    if reason is None or reason in received:
        reason = ALL_DONE
    session.end("finished", reason=reason)
    session.loop.world.barrier()  # the other ranks read next what rank 0 has written
    if is_model_sharded(session.model) and not session.run.config["recipe"]:
        path = str(session.run.path)
        session.messages.print_line(
            "Your model object has only a shard of its parameters now. Load the full weights into "
            f"a new one: surestep.Run({path!r}).load_model(model). Or write them to one file: "
            f"surestep ckpt export {shlex.quote(path)} weights.safetensors"
        )
    if not received:
        return ""
    message = f"{session.run.path} was finished when {received[0]} arrived."
    session.messages.print_line(message)
    return message


def _stop(session: Session, name: str) -> str:
    """Save, and write that the run can be resumed, since launchers swallow exit codes."""
    path, hint = session.saving.ensure_saved(), resume_hint(session)
    session.end("stopped", reason=name, resumable=True)
    session.loop.world.barrier()
    message = f"Stopped after step {session.state.progress.step}; saved as {path}.{hint}"
    session.messages.print_line(message)
    return f"{name}: {message}{'' if hint else ' Run the same command again to resume.'}"


def _stop_at_once(session: Session, name: str) -> None:
    """Write whether the last step was saved, and print the newest checkpoint in the folder."""
    session.saving.wait()
    step, existing = session.state.progress.step, list_checkpoints(session.run.checkpoints)
    was = "was" if existing and step_of(existing[-1]) == step else "was not"
    reason = f"{name}, then Ctrl-C: this step {was} saved"
    session.end("stopped", reason=reason, resumable=bool(existing))
    newest = "no checkpoint was written yet."
    if existing:
        newest = f"the newest checkpoint is {existing[-1]}.{resume_hint(session)}"
    session.messages.print_line(f"Stopped at once after step {step}; {newest}")


def _fail(session: Session, error: Exception, reason: str, **more: Any) -> None:
    """Write that the run failed; if that fails too, the first error stays the one to raise."""
    session.loop.world.failed(error)  # first, since the end waits for what all ranks write
    try:
        session.end("failed", reason=reason, **more)
    except SurestepError as late:
        error.add_note(str(late))


def _save_before(session: Session) -> str:
    """Save the state, which is the one before the failed step; return a note about it."""
    try:
        return f"Saved as {session.saving.ensure_saved()}."
    except CheckpointError as error:
        return f"The state before it could not be saved: {error}"
