"""Copy a running run to its mirror, in a thread that reads the run folder.

However slow or broken the mirror is, training only writes its folder. Passes repeat until the run
closes; then the rest is copied for as long as the mirror takes it.
"""

import math
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from surestep.base.errors import CheckpointError, RunError
from surestep.base.secrets import describe_error
from surestep.base.text import format_bytes, print_escaped
from surestep.base.typed_targets import remember_target
from surestep.mirror.link import MirrorLink
from surestep.mirror.owner import STALE_S, Owner
from surestep.mirror.push import Pusher
from surestep.mirror.store import Store, UnreachableError
from surestep.record.final_wait import Sent, wait_until_sent

if TYPE_CHECKING:  # it imports torch, which commands that read a mirror do not need
    from surestep.record.progress_display import NullProgress

INTERVAL_S = 1.0  # between two passes
LONGEST_PAUSE_S = 30.0  # between two attempts to reach the mirror
STALLED_S = 60.0  # at the end of a run: how long to wait for a mirror that takes nothing more
HANGING_S = 60.0  # a mirror that does not answer for so long counts as an outage
_NAMED = 3  # files that a message names


class _GaveUp(Exception):
    """The run has ended without waiting for the rest."""


@dataclass(frozen=True)
class LateStart:
    """A mirror that did not answer when its run started.

    Attributes:
        outage: what the driver raised.
        join: checks the mirror, and makes this process its writer.
    """

    outage: Exception
    join: Callable[[], None]


class Uploader:
    """Copies a run folder to its mirror until it is closed.

    Args:
        folder: of the run.
        store: of the mirror.
        link: of the run folder to the mirror.
        owner: this process as its writer.
        late: if the mirror did not answer at the start: what is done when it does.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        link: MirrorLink,
        owner: Owner,
        late: "LateStart | None" = None,
    ) -> None:
        self.folder = folder
        self.store = store
        self.name = store.address
        self.owner = owner
        self.pusher = Pusher(
            folder.absolute(), store, link, self._check, on_complete=owner.record_checkpoint
        )
        self._late = late
        self._closing, self._gave_up = Event(), Event()
        self._lost: RunError | None = None
        self._messages: list[str] = []
        self._failures = 0
        self._lock, self._is_out = Lock(), False
        self._thread = Thread(target=self._follow, name="surestep-mirror", daemon=True)

    def start(self) -> None:
        """Write to the run folder where its mirror is, and start the thread.

        The mirror was typed by the user, now or before; `resume` does not ask for it again.
        """
        remember_target(self.pusher.link.id, self.pusher.link.address)
        self.pusher.link.write(self.pusher.folder)
        self.owner.start()
        if self._late is not None:
            self._failures = 1
            self._report(describe_error(self._late.outage))
        self._thread.start()

    def notice(self) -> str | None:
        """Return a message about the mirror, each once."""
        if (silent_s := self.store.silent_s()) > HANGING_S:
            self._report(f"it has not answered for {silent_s:.0f} s")
        return self._messages.pop(0) if self._messages else None

    def discard(self) -> None:
        """Let other processes write the mirror; no session was opened, or it could not start."""
        if self._thread.ident is not None:
            self.close(partial(print_escaped, file=sys.stderr))
        else:
            self.owner.try_release()

    def close(
        self, print_line: Callable[[str], None], display: "NullProgress | None" = None
    ) -> None:
        """Copy the rest; stop if the mirror takes nothing for STALLED_S, or by Ctrl-C.

        What the mirror lacks then is printed, and the command that copies it.

        Args:
            print_line: prints a line.
            display: shows how much is copied; None shows nothing.
        """
        self.store.progress.restart()
        self.pusher.count_sent()  # from now on
        try:
            report = partial(self._print_messages, print_line)
            wait_until_sent([self], display, limit_s=math.inf, report=report)
        finally:
            self._gave_up.set()
            self._print_messages(print_line)
            if self._lost is None and (missing := self.pusher.missing()):
                print_line(
                    f"{self.store.address} lacks {_describe(missing, self.pusher.count_rest())} of "
                    "this run. To copy the rest: surestep mirror push "
                    f"{shlex.quote(str(self.folder))}"
                )
            elif self.owner.is_owner or self.owner.is_named:  # the thread may end meanwhile
                print_line(
                    f"{self.store.address} has this run, but still names this process as its "
                    f"writer. Another machine waits {STALE_S:.0f} s for it, unless you release it: "
                    f"surestep mirror release {shlex.quote(self.store.address)}"
                )
            self.owner.forget()

    def finish(self) -> None:
        """Make the last pass, and end."""
        self._closing.set()

    def wait(self, seconds: float) -> bool:
        """Wait for at most this long for the last pass; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def has_stalled(self) -> bool:
        """Return whether the mirror has taken nothing for STALLED_S."""
        if time.monotonic() - self.store.progress.at <= STALLED_S:
            return False
        if (silent_s := self.store.silent_s()) > STALLED_S / 2:
            self._report(f"it has not answered for {silent_s:.0f} s", is_over=True)
        return True

    def count_sent(self) -> Sent:
        """Return how many bytes of the rest are copied, and of how many."""
        return self.pusher.count_sent()

    def _print_messages(self, print_line: Callable[[str], None]) -> None:
        while (message := self.notice()) is not None:
            print_line(message)

    def _follow(self) -> None:
        try:
            self._copy_until_closed()
        finally:  # the mirror may have been joined only after the run had given it up
            if self._gave_up.is_set():
                self.owner.try_release()

    def _copy_until_closed(self) -> None:
        pause = 0.0
        while not self._gave_up.is_set():
            is_last = self._closing.wait(pause)
            try:
                pause = self._pass(is_last=is_last)
            except _GaveUp:
                return
            except RunError as error:
                if not isinstance(error, UnreachableError):  # another writer, or another run
                    self._lost = error
                    self._messages.append(str(error))
                    self.owner.try_release()
                    return
                pause = self._fail(error)
            except Exception as error:  # whatever the driver raises
                pause = self._fail(error)
            else:
                if is_last:
                    return
            if is_last:
                self._gave_up.wait(min(pause, INTERVAL_S))

    def _pass(self, *, is_last: bool) -> float:
        """Make one pass; return how long to wait for the next."""
        if self._late is not None:
            self._late.join()
            self._late = None
            self.pusher.finish_fetching()
        self._check()
        try:
            self.pusher.push(is_last=is_last)
        except CheckpointError as error:  # in the run folder, so trying again does not help
            self._messages.append(f"{error} It is not copied to {self.store.address}.")
        if is_last:
            self.owner.release()
        with self._lock:
            if self._is_out:
                self._messages.append(f"{self.store.address} has what it had missed.")
            self._failures, self._is_out = 0, False
        return INTERVAL_S

    def _fail(self, error: Exception) -> float:
        """Report an outage, if it is not known; return how long to wait."""
        self._failures += 1
        self.pusher.look_again()
        self._report(describe_error(error))
        return min(LONGEST_PAUSE_S, 2.0 ** min(self._failures, 5))

    def _check(self) -> None:
        if self._gave_up.is_set():
            raise _GaveUp
        self.owner.check()

    def _report(self, reason: str, *, is_over: bool = False) -> None:
        """Report an outage once, until the mirror has taken everything again."""
        effect = "Training continues, and what is missing is copied when it does."
        if self._closing.is_set():
            effect = "" if is_over else f"It is tried for {STALLED_S:.0f} s more."
        with self._lock:
            if not self._is_out:
                text = f"{self.store.address} takes no copies: {reason}. {effect}"
                self._messages.append(text.rstrip())
            self._is_out = True


def _describe(missing: list[str], size: int) -> str:
    """Return what a mirror lacks: its first files, how many more there are, and their size."""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return f"{', '.join(missing[:_NAMED])}{more} ({format_bytes(size)})"
