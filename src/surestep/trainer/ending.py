"""How a run ended, in its events and its status."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from surestep.base.errors import NonFiniteError, RunError, StatusWriteError, SurestepError
from surestep.engine.step.loop import Loop
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.run_writer import RunWriter, describe_error_end
from surestep.trainer.review.findings import RunChecks, describe
from surestep.trainer.summary import ALL_DONE, ThroughputCounter, summarize_run


class Ending:
    """Writes how a run ended, once.

    Attributes:
        is_manual: `train_step()` was used, so only the caller knows the last step.
    """

    def __init__(
        self,
        loop: Loop,
        recorder: RunWriter,
        timed: ThroughputCounter,
        checks: RunChecks,
        print_line: Callable[[str], None],
    ) -> None:
        self._loop, self._recorder, self._timed = loop, recorder, timed
        self._checks, self._print_line = checks, print_line
        self._is_written, self._error = False, None  # type: bool, BaseException | None
        self.is_manual = False

    def write(self, status: str, **more: Any) -> None:
        """Write a status with what is known of the run, and print findings that were not shown."""
        self._is_written = True
        findings = self._checks.at_end(is_finished=status == "finished")
        summary = {
            **summarize_run(self._loop.plan, self._loop.state, self._timed, status),
            **more,
            "findings": [asdict(finding) for finding in findings],
        }
        write_summary(self._recorder, status, summary)
        for finding in findings:
            if finding not in self._checks.shown:
                self._print_line(describe(finding))

    def note(self, error: BaseException) -> None:
        """Note the error that ends the run, and call `on_exception` of its parts."""
        self._error = error
        for part in self._loop.parts:
            try:
                part.on_exception(self._loop.state, error)
            except Exception as late:  # the error that ended the run is the one to raise
                kind = type(part).__name__
                error.add_note(f"{kind}.on_exception failed: {type(late).__name__}: {late}")

    def call(self, close: Callable[..., object], *args: object) -> None:
        """Call a function at the end; add its error to the one that ended the run, if there is one.

        Args:
            close: the function.
            args: of the function.
        """
        try:
            close(*args)
        except Exception as late:  # the error that ended the run is the one to raise
            if self._error is None:
                raise
            kind = "" if isinstance(late, SurestepError) else f"{type(late).__name__}: "
            self._error.add_note(f"While closing: {kind}{late}")

    def write_if_missing(self, kind: object, late: BaseException | None, traceback: object) -> None:
        """Write what the loop says, if nothing was written; `late` was raised while closing."""
        if self._is_written:
            return
        error = self._error or late
        status, reason = end_of_loop(self._loop, error, is_manual=self.is_manual)
        more: dict[str, Any] = {}
        if status == "stopped":
            more["resumable"] = bool(list_checkpoints(self._recorder.checkpoints))
        self.write(status, reason=reason, **more)


def end_of_loop(loop: Loop, error: BaseException | None, *, is_manual: bool) -> tuple[str, str]:
    """Return status and reason of a run whose session closes without `end()`.

    If `train_step()` was used, the run is manual: only the caller knows its last step.
    """
    step, total = loop.state.progress.step, loop.plan.total_steps
    if isinstance(error, NonFiniteError):
        return "failed", str(error)
    if isinstance(error, Exception):
        return describe_error_end(error)
    if error is not None:
        return "stopped", f"{type(error).__name__} after step {step} of {total}"
    if loop.requests.interrupted:
        return "stopped", loop.requests.interrupted
    if not is_manual and (step >= total or loop.requests.stopping):
        return "finished", loop.requests.stopping or ALL_DONE
    return "stopped", f"the session was closed after step {step} of {total}"


def write_summary(recorder: RunWriter, status: str, summary: Mapping[str, Any]) -> None:
    """Write how a run ended; raise a StatusWriteError if status.json cannot be written."""
    recorder.event("end", status=status, **summary)
    try:
        recorder.status(status, **summary)
    except RunError as error:
        cause, folder = error.__cause__, recorder.folder
        reason = cause.strerror if isinstance(cause, OSError) else None
        existing = list_checkpoints(recorder.checkpoints) if folder.is_dir() else []
        kept = f"its newest checkpoint is {existing[-1]}" if existing else "it has no checkpoint"
        again = "resumes from that checkpoint" if existing else "starts from scratch"
        hint = "Make the folder writable again (free space if the disk is full)"
        if not folder.is_dir():
            kept, hint = "its folder is gone", "Restore the folder (mount its disk again)"
            again = "resumes from its newest checkpoint"
        raise StatusWriteError(
            f"{folder / 'status.json'} could not be written: {reason or error}. The run {status} "
            f"at step {summary['step']}, and {kept}; only its end is not recorded. {hint}, and run "
            f"the same command again: it {again}."
        ) from error
