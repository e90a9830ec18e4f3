"""The tuner's side of a measuring process: start it, ask, and end it."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from surestep.base import errors
from surestep.base.processes import kill_tree
from surestep.base.temp_folders import make_temp_folder
from surestep.base.text import format_duration
from surestep.tuning.channel import SOCKET, Channel
from surestep.tuning.process import describe_code

HUNG = "TimeoutError"
_START_S = 120.0  # for the imports of all ranks, also where other programs take the cores
_POLL_S = 0.2


class MeasuringFailed(Exception):
    """A measuring process failed, and was ended.

    Attributes:
        kind: name of the class of the error, HUNG if there was no answer; "" if it is not known.
    """

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind

    def as_error(self) -> Exception:
        """Return the error that ends the command, if not even the recipe as it is can be run."""
        kind = getattr(errors, self.kind, errors.RunError)
        return kind(str(self)) if issubclass(kind, errors.SurestepError) else self


class MeasuringProcess:
    """One process that answers questions, or several ranks that all answer.

    Args:
        recipe: name or path of what is trained.
        log: gets what the process prints.
        nproc: number of ranks.
    """

    def __init__(self, recipe: str, log: Path, nproc: int) -> None:
        self._log, self._closers, self._channels = log, ExitStack(), list[Channel]()
        try:
            self._start(recipe, nproc)
        except BaseException:
            self.end()
            raise

    def _start(self, recipe: str, nproc: int) -> None:
        folder = self._closers.enter_context(make_temp_folder())
        self._listener = self._closers.enter_context(
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        )
        self._listener.bind(str(folder / "s"))
        self._listener.listen()
        log = self._closers.enter_context(self._log.open("ab"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "surestep.tuning", "measure", *([str(nproc)] * (nproc > 1))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, SOCKET: str(folder / "s"), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C is for the tuner, which ends it
        )
        self._closers.callback(self._kill)
        self._nproc, self._recipe = nproc, recipe

    def ask(self, question: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Ask all ranks; return the answer of the first one.

        Args:
            question: what to do; see `Measurements`.
            limit_s: how long the answer may take, without the start of the process.

        Raises:
            MeasuringFailed: a rank failed, ended, or did not answer in this time.
        """
        try:
            if not self._channels:
                self._connect(time.monotonic() + _START_S, _START_S)
            end = time.monotonic() + limit_s
            for channel in self._channels:
                channel.send(dict(question))
            answers = [self._receive(channel, end, limit_s) for channel in self._channels]
        except BaseException:
            self.end()
            raise
        return answers[0]

    def _connect(self, end: float, limit_s: float) -> None:
        """Wait until all ranks are connected; order them."""
        by_rank: dict[int, Channel] = {}
        while len(by_rank) < self._nproc:
            self._wait(self._listener, end, limit_s)
            connection, _ = self._listener.accept()
            channel = Channel(connection)
            self._closers.callback(channel.close)
            by_rank[self._receive(channel, end, limit_s)["rank"]] = channel
        self._channels = [by_rank[rank] for rank in sorted(by_rank)]
        for channel in self._channels:
            channel.send({"recipe": self._recipe})

    def _receive(self, channel: Channel, end: float, limit_s: float) -> dict[str, Any]:
        messages: list[dict[str, Any]] | None = []
        while not messages:
            self._wait(channel, end, limit_s)
            messages = channel.read()
            if messages is None:
                raise MeasuringFailed(self._describe_end())
        answer = messages[0]
        if "failed" in answer:
            raise MeasuringFailed(answer["failed"], answer["kind"])
        return answer

    def _wait(self, source: Any, end: float, limit_s: float) -> None:
        """Wait until there is something to read."""
        with selectors.DefaultSelector() as selector:
            selector.register(source, selectors.EVENT_READ)
            while not selector.select(_POLL_S):
                if self._process.poll() is not None and not selector.select(0):
                    raise MeasuringFailed(self._describe_end())
                if time.monotonic() > end:
                    raise MeasuringFailed(
                        f"no answer for {format_duration(limit_s)}: it hangs, or takes longer than "
                        "there is time for",
                        HUNG,
                    )

    def _describe_end(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(5)
            return f"{describe_code(code)}; see {self._log}"
        return f"it closed its connection; see {self._log}"

    def _kill(self) -> None:
        kill_tree(self._process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """End the process and all that it has started; a second call does nothing."""
        self._channels = []
        self._closers.close()
