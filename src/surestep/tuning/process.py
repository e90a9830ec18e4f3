"""The worker's side of a trial: start its process, answer it, stop it, and report how it ended."""

import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from surestep.base.exit_codes import INTERRUPTED, STOPPED
from surestep.base.processes import kill_tree
from surestep.base.temp_folders import make_temp_folder
from surestep.base.text import format_duration
from surestep.engine.distributed.stop_signals import CTRL_C, StopSignals
from surestep.tuning.channel import SOCKET, Channel

TIMEOUT = "timeout"
TRIAL_TIMEOUT, STEP_TIMEOUT = "--trial-timeout", "--step-timeout"
# Not through a link: a study that was received could name any file.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
# How long a trial may save after a signal, until it is killed: the search ends within 10 s of
# SIGTERM, since a job scheduler kills it soon.
_SAVES_S = {"SIGTERM": 5.0}
LONGEST_SAVE_S = 60.0  # after any other request to stop
_AT_ONCE_S = 15.0  # after a second Ctrl-C
_SILENT_S = 600.0  # without a step: it is reported if no limit ends the trial
_POLL_S = 0.5  # between two checks of what ends a trial early
_LAST_MESSAGE_S = 5.0  # for what all ranks of a trial sent before it ended
_HANDED_BACK = (STOPPED, INTERRUPTED)  # exit codes of a trial that was stopped, and saved


class StopRequests:
    """What stops a worker: a signal, or the end of its time; wakes a `select` that waits.

    A context manager: signals are handled within it.

    Attributes:
        reason: "Ctrl-C", "SIGTERM", "timeout" or another; "" while the worker continues.
        at_once: a second Ctrl-C has arrived.
        kill_at: time of the monotonic clock at which a trial that still runs is killed.

    Args:
        timeout_s: time from now on; None is without limit.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self.reason = ""
        self.at_once = False
        self.kill_at = math.inf
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._signals = StopSignals(self.stop)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> Self:
        """Let signals stop the worker."""
        self._signals.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.close()
        self._reader.close()
        self._writer.close()

    def stop(self, reason: str) -> None:
        """Stop the worker; a second Ctrl-C stops it at once."""
        left_s = _SAVES_S.get(reason, LONGEST_SAVE_S)
        if not self.reason:
            self.reason = reason
        elif reason == CTRL_C:
            self.at_once, left_s = True, _AT_ONCE_S
        self.kill_at = min(self.kill_at, time.monotonic() + left_s)
        self.wake()

    def wake(self) -> None:
        """End a `wait`, also in another thread."""
        with suppress(OSError):
            self._writer.send(b".")

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable on `wake`."""
        return self._reader.fileno()

    def drain(self) -> None:
        """Read what `wake` has sent; note that the time is over."""
        with suppress(OSError):
            self._reader.recv(2**12)
        if self.left_s() == 0.0 and not self.reason:
            self.stop(TIMEOUT)

    def left_s(self) -> float | None:
        """Return how much time is left; None is without limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Wait for so long at most, or until something stops the worker."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            left = self.left_s()
            selector.select(seconds if left is None else min(seconds, left))
        self.drain()


@dataclass(frozen=True)
class Limits:
    """How long a trial may take; None is without limit.

    Attributes:
        trial_s: from its first process to its end.
        step_s: without a training step; the start, evaluations and saving count too.
    """

    trial_s: float | None = None
    step_s: float | None = None


@dataclass
class Ended:
    """How the process of a trial ended.

    Attributes:
        result: what it measured; None if it did not come to its end.
        reason: why it failed; "" if it did not.
        stopped: it was stopped before its end, and can be resumed.
        is_overdue: it failed since it exceeded a limit.
    """

    result: dict[str, Any] | None = None
    reason: str = ""
    stopped: bool = False
    is_overdue: bool = False


@dataclass
class TrialProcess:
    """Runs one job in a separate process, or in several.

    Attributes:
        job: sent to the process.
        log: gets what the process prints.
        nproc: number of processes that train.
        environment: of the process, beside that of the worker.
        answer: called with the new evaluations; returns whether to prune.
        stops: what stops the process.
        limits: how long it may take.
        spent_s: how long earlier processes of the trial took.
        warn: called once with a line if the trial takes no step for long, and has no limit.
    """

    job: Mapping[str, Any]
    log: Path
    nproc: int
    environment: Mapping[str, str]
    answer: Callable[[list[dict[str, Any]]], bool]
    stops: StopRequests
    limits: Limits = Limits()
    spent_s: float = 0.0
    warn: Callable[[str], None] = lambda _: None
    _result: dict[str, Any] | None = None
    _failures: list[str] = field(default_factory=list)
    _must_stop: bool = False
    _overdue: str = ""
    _has_warned: bool = False
    _kill_at: float = math.inf
    _signals_sent: int = 0
    _started_at: float = 0.0
    _stepped_at: float = 0.0
    _has_stepped: bool = False

    def give_up(self) -> None:
        """Let the process save and stop, although the worker continues."""
        self._stop_within(LONGEST_SAVE_S)
        self.stops.wake()

    def _stop_within(self, seconds: float) -> None:
        """Let the process save and stop; kill it after this time."""
        self._must_stop = True
        self._kill_within(seconds)

    def _kill_within(self, seconds: float) -> None:
        """Kill the process after this time, if it still runs."""
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def run(self) -> Ended:
        """Run the process to its end.

        Raises:
            OSError: its log cannot be written, or it cannot be started.
        """
        with (
            make_temp_folder() as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
            selectors.DefaultSelector() as selector,
            open(os.open(self.log, _APPEND, 0o666), "ab") as log,
        ):
            path = str(folder / "s")
            listener.bind(path)
            listener.listen()
            selector.register(listener, selectors.EVENT_READ)
            selector.register(self.stops, selectors.EVENT_READ)
            process = self._start(path, log.fileno())
            try:
                self._serve(process, selector, listener)
            finally:
                if process.returncode != 0:
                    _kill_group(process)
                self._close(selector, listener)
        return self._describe(process.returncode)

    def _start(self, path: str, log: int) -> subprocess.Popen[bytes]:
        self._started_at = self._stepped_at = time.monotonic()
        words = [str(self.nproc)] if self.nproc > 1 else []
        process = subprocess.Popen(
            [sys.executable, "-m", "surestep.tuning", "trial", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **self.environment, SOCKET: path, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C reaches the worker, which lets the trial save
        )

        def wait() -> None:
            process.wait()
            self.stops.wake()

        threading.Thread(target=wait, name="surestep-trial", daemon=True).start()
        return process

    def _serve(
        self,
        process: subprocess.Popen[bytes],
        selector: selectors.BaseSelector,
        listener: socket.socket,
    ) -> None:
        """Answer the process until it ends."""
        while process.returncode is None:
            for key, _ in selector.select(_POLL_S):
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    selector.register(Channel(connection), selectors.EVENT_READ)
                elif isinstance(key.fileobj, Channel):
                    self._receive(key.fileobj, selector)
            self.stops.drain()
            self._check_limits()
            self._stop(process)

    def _receive(self, channel: Channel, selector: selectors.BaseSelector) -> None:
        messages = channel.read()
        if messages is None:
            selector.unregister(channel)
            channel.close()
            return
        for message in messages:
            if "evaluations" in message:
                channel.send({"prune": self.answer(message["evaluations"])})
            elif "step" in message:
                self._has_stepped, self._stepped_at = True, time.monotonic()
            elif "failed" in message:
                self._failures.append(message["failed"])
                self._kill_within(LONGEST_SAVE_S)
            elif "result" in message:
                self._result = message["result"]
                self._kill_within(LONGEST_SAVE_S)
            else:  # a process that has just started
                channel.send(dict(self.job))

    def _check_limits(self) -> None:
        """End a process that takes too long; it may save first."""
        if self.stops.reason or self._kill_at < math.inf:
            return
        now, limits = time.monotonic(), self.limits
        if limits.trial_s is not None and self.spent_s + now - self._started_at > limits.trial_s:
            self._overdue = f"took more than {format_duration(limits.trial_s)} ({TRIAL_TIMEOUT})"
        elif limits.step_s is not None and now - self._stepped_at > limits.step_s:
            self._overdue = f"took no step for {format_duration(limits.step_s)} ({STEP_TIMEOUT})"
        else:
            self._warn_if_silent(now - self._stepped_at)
            return
        if not self._has_stepped:
            self._overdue += " before its first step"
        self._stop_within(_SAVES_S["SIGTERM"])

    def _warn_if_silent(self, silent_s: float) -> None:
        if silent_s > _SILENT_S and self.limits.step_s is None and not self._has_warned:
            self._has_warned = True
            self.warn(
                f"{self.log.stem} has taken no step for {format_duration(_SILENT_S)}. To fail a "
                f"trial that hangs, run the same command with {STEP_TIMEOUT} 30m."
            )

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on what stops the process: first SIGTERM, which saves, then Ctrl-C, then SIGKILL."""
        with suppress(ProcessLookupError):
            if (self.stops.reason or self._must_stop) and self._signals_sent == 0:
                self._signals_sent = 1
                process.send_signal(signal.SIGTERM)
            if self.stops.at_once and self._signals_sent == 1:
                self._signals_sent = 2
                process.send_signal(signal.SIGINT)
        if time.monotonic() >= min(self._kill_at, self.stops.kill_at):
            kill_tree(process.pid)

    def _close(self, selector: selectors.BaseSelector, listener: socket.socket) -> None:
        """Read what the process sent last, and close the connections.

        A process that outlived the trial can keep those of several ranks open.
        """
        end = time.monotonic() + _LAST_MESSAGE_S
        for key in list(selector.get_map().values()):
            if isinstance(key.fileobj, Channel):
                while key.fileobj.fileno() >= 0:
                    key.fileobj.limit_wait(max(0.0, end - time.monotonic()))
                    self._receive(key.fileobj, selector)

    def _describe(self, code: int) -> Ended:
        if self._result is not None:
            return Ended(self._result)
        if self._overdue:
            return Ended(reason=self._overdue, is_overdue=True)
        was_signaled = self._signals_sent > 0
        if code in _HANDED_BACK or (was_signaled and (code < 0 or code >= 128)):
            return Ended(stopped=True)
        if self._failures:
            own = [text for text in self._failures if not text.startswith("ParallelError")]
            return Ended(reason=(own or self._failures)[0])
        return Ended(reason=f"{describe_code(code)}; see {self.log}")


def describe_code(code: int) -> str:
    """Return how a process without a message ended; torchrun's code for a signal is 128 above."""
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"the process ended with exit code {code}"
    why = " (the system does so if memory runs out)" if name == "SIGKILL" else ""
    return f"killed by {name}{why}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a trial: a rank or a data worker that outlived its parent."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
