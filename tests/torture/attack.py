"""An attack on the services of runs and searches: its servers, and what it did."""

import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.mirror.servers import S3Server
    from tests.postgres import PostgreSQL
    from tests.tracking.mlflow_server import Server


Act = Callable[[], object]
NO_EFFECT = "the attack had no effect"
NOTICED_S = 120.0  # the longest wait until a run notices an outage


@dataclass
class Effect:
    """What an attack did.

    Attributes:
        lost: points, checkpoints or trials that are missing.
        doubled: those that are there more than once.
        wrong: a sentence for anything else.
        times: how often it was made.
        expected: points, checkpoints or trials that were recorded.
    """

    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)
    times: int = 1
    expected: int = 0

    @property
    def passes(self) -> bool:
        """Whether nothing is lost, doubled or wrong."""
        return not (self.lost or self.doubled or self.wrong)

    def __add__(self, other: "Effect") -> "Effect":
        return Effect(
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.wrong + other.wrong,
            self.times + other.times,
            self.expected + other.expected,
        )


class Outage:
    """An outage of a service, which lasts until a run notices it.

    Drivers repeat requests: a shorter one would only test them.

    Args:
        patch: notes the calls of `follower._fail`.
        follower: class of what sends the run's files or events; its `_fail` handles a failure.
        begin: breaks the service.
        end: mends it.

    Attributes:
        wrong: that the run noticed nothing.
    """

    def __init__(self, patch: pytest.MonkeyPatch, follower: type, begin: Act, end: Act) -> None:
        self._begin, self._end = begin, end
        self._noticed = Event()
        self.wrong = [f"{NO_EFFECT}: it did not begin"]
        fail = vars(follower)["_fail"]

        def note(sender: Any, error: Exception) -> Any:
            self._noticed.set()
            return fail(sender, error)

        patch.setattr(follower, "_fail", note)

    def begin(self) -> None:
        """Break the service."""
        self._noticed.clear()
        self._begin()

    def end(self) -> None:
        """Mend the service once the run has noticed the outage."""
        is_noticed = self._noticed.wait(NOTICED_S)
        self.wrong = [] if is_noticed else [f"{NO_EFFECT}: the run noticed no failure"]
        self._end()


class Hosts:
    """The servers, each of which starts when it is first used.

    Args:
        stack: stops them.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def renew(self) -> None:
        """Start new servers when they are next used: one of these may be dead."""
        for name in ("mlflow", "s3", "postgres"):
            vars(self).pop(name, None)

    @cached_property
    def mlflow(self) -> "Server":
        """An MLflow server."""
        from tests.tracking.mlflow_server import Server

        server = Server(Path(self._stack.enter_context(tempfile.TemporaryDirectory())))
        server.start()
        self._stack.callback(server.kill)
        return server

    @cached_property
    def s3(self) -> "S3Server":
        """An S3 server."""
        from tests.mirror.servers import S3Server

        return self._stack.enter_context(S3Server())

    @cached_property
    def postgres(self) -> "PostgreSQL":
        """A PostgreSQL server."""
        from tests.postgres import PostgreSQL, find_programs

        if (programs := find_programs()) is None:
            raise FileNotFoundError("PostgreSQL is not installed")
        server = PostgreSQL(programs)
        self._stack.callback(server.stop)
        server.start()
        return server


Attack = Callable[[Hosts, Path, random.Random], Effect]
