"""What a signal does to a session: from `prepare()` to `close()`, and within `fit()`."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from surestep.base.errors import Preempted, RunError
from surestep.base.text import escape_control_chars
from surestep.engine.distributed.stop_signals import CTRL_C, StopSignals, has_agent, raise_stop
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.trainer.session import Session


def stop_before_first_step() -> StopSignals:
    """Raise an error for each signal that arrives while a session is prepared."""
    return StopSignals(partial(raise_stop, "Stopped by {name} before the first step.")).open()


def attach_signals(signals: StopSignals, session: Session) -> None:
    """Have the signals stop a session that is ready, until nothing refers to it.

    The session closes them when it is closed.
    """
    signals.check()
    signals.act = partial(_stop_session, weakref.ref(session), signals.received)
    weakref.finalize(session, signals.close).atexit = False


def _stop_session(reference: "weakref.ref[Session]", received: list[str], name: str) -> None:
    """Raise the error for a signal outside of `fit()`; a step is finished first."""
    session = reference()
    if name == CTRL_C:
        raise KeyboardInterrupt
    if session is None:
        raise Preempted(f"Stopped by {name}.", reason=name)
    if session.loop.requests.interrupted:  # it is stopping
        return
    if not session.closed:  # the caller may continue, so the next signal counts too
        received.clear()
    session.loop.after_step(partial(_raise_preempted, session, name))


def _raise_preempted(session: Session, name: str) -> None:
    if has_finished(session):
        raise Preempted(f"{session.run.path} was finished when {name} arrived.", reason=name)
    step, saved = session.state.progress.step, list_checkpoints(session.run.checkpoints)
    where = f"after step {step}" if step else "before the first step"
    newest = f"the newest checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
    text = f"Stopped by {name} {where}; {newest}.{resume_hint(session)}"
    raise Preempted(text, reason=name)


def has_finished(session: Session) -> bool:
    """Return whether the run folder says that the run has finished."""
    with suppress(RunError):
        return bool(session.run.status["status"] == "finished")
    return False


def resume_hint(session: Session) -> str:
    """Return how to resume a run of a script; the command line prints its own command."""
    if not session.loop.world.is_first or session.run.config["recipe"]:
        return ""
    return f" Run the script again with run={str(session.run.path)!r} to resume."


@contextmanager
def stop_after_step(session: Session) -> Iterator[list[str]]:
    """Stop after the step on the first signal, and at once on Ctrl-C after it; yield its name."""

    def act(name: str) -> None:
        if len(signals.received) > 1:
            raise KeyboardInterrupt
        session.loop.requests.ask(name)
        if has_agent() and name == "SIGTERM":
            name = f"{name} (torchrun sends it to all ranks if a process has died)"
        again = "Another Ctrl-C" if name == CTRL_C else "Ctrl-C"
        _print_in_handler(session, f"{name}: stopping after this step. {again} stops at once.")

    with StopSignals(act, finishes_step=True) as signals:
        yield signals.received


def _print_in_handler(session: Session, text: str) -> None:
    try:
        session.messages.print_line(text)
    except RuntimeError:  # the signal interrupted a print, which cannot be reentered
        os.write(2, f"{escape_control_chars(text)}\n".encode())
