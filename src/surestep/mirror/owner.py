"""Which run a mirror holds, and which process writes it: the file mirror.json in the mirror.

A writer renews it every RENEW_S seconds. A second process may write only when the first has ended
or was not renewed for STALE_S, so that two machines never write one mirror at the same time. A
writer that could not renew for half of that, because it or its machine slept, renews before it
writes. Object stores have no locks that every driver supports, so two processes that start within
the same second can both become the writer; the first of them notices that at its next renewal.
"""

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any
from uuid import uuid4

from surestep.base.errors import RunError
from surestep.base.processes import describe_machine, has_ended
from surestep.mirror.store import Store
from surestep.record.io import dumps, parse_json
from surestep.record.schemas import MIRROR, validate

FILE = "mirror.json"
# The token of the writer that `surestep mirror release` took the mirror away from. A renewal that
# has read mirror.json before and writes it after the release does not overwrite this file.
RELEASED = ".released"
RENEW_S = 20.0
STALE_S = 120.0  # six renewals: a writer that is slow for some is not dead
_HANGING_S = 120.0  # how long to wait for a write of an earlier session of this process
POLL_S = 2.0  # between two checks whether another process renews
_held: set[str] = set()  # locations that this process writes
# By location. A renewal must not follow the release, nor the start of the next session: one that
# hangs may still arrive when the mirror answers again.
_locks: defaultdict[str, Lock] = defaultdict(Lock)
# It also counts while the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class OwnerChangedError(RunError):
    """Another process writes the mirror now."""


def read_owner(store: Store) -> dict[str, Any] | None:
    """Return the content of mirror.json without a writer that was released; None if there is none.

    Raises:
        RunError: it cannot be read.
    """
    try:
        found = dict(validate(MIRROR, parse_json(store.read(FILE))))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunError(
            f"{store.address}/{FILE} is damaged: {error}. Delete this file, and start again."
        ) from error
    if found["writer"] is not None:
        with suppress(FileNotFoundError):
            if store.read(RELEASED) == found["writer"]["token"].encode():
                found["writer"] = None
    return found


class Owner:
    """This process as the writer of a mirror. A thread renews it from `acquire()` to `release()`.

    Args:
        store: of the mirror.
        run_id: of the run that it writes.
        has_started: see below.

    Attributes:
        run_id: of the run.
        has_started: the run folder has the id too. A start that ends before that leaves a mirror
            that any run may take.
        has_saved: a checkpoint of the run was once complete in the mirror. If not, there is
            nothing to continue from, and another run may take the mirror.
        is_owner: whether it is the writer, as far as this process knows.
        is_named: the mirror names it still, since it could not be released at the end.
    """

    def __init__(self, store: Store, run_id: str, *, has_started: bool = True) -> None:
        self.store = store
        self.run_id = run_id
        self.has_started = has_started
        self.has_saved = False
        local = store.local_path  # /x and file:///x are one place
        self._place = store.address if local is None else str(local.resolve())
        self._token = uuid4().hex
        self._renewed = 0.0
        self.is_owner = self.is_named = False
        self._lost: OwnerChangedError | None = None
        self._gone: dict[str, Any] | None = None  # a writer that was waited for
        self._ended = Event()
        self._lock = _locks[self._place]

    def adopt(self, found: Mapping[str, Any]) -> None:
        """Write the run of a mirror from now on, by what its mirror.json has."""
        self.run_id = found["id"]
        self.has_started, self.has_saved = found.get("started", True), found.get("saved", True)

    def wait(self, print_line: Callable[[str], None]) -> bool:
        """Wait for at most STALE_S until a process that may be dead is gone.

        Returns:
            Whether there was one, which may have copied more meanwhile.

        Raises:
            RunError: a living process writes the mirror.
        """
        if self._place in _held:
            raise RunError(
                f"{self.store.address} is in use by another session of this process. Call its "
                "close(), or choose another checkpoint.mirror."
            )
        writer = (read_owner(self.store) or {}).get("writer")
        if writer is None or writer == self._gone or _has_ended(writer):
            return False
        _wait_for(self.store, writer, print_line)
        self._gone = writer
        return True

    def acquire(self, print_line: Callable[[str], None]) -> None:
        """Become the writer; wait first as `wait` does.

        Raises:
            RunError: a living process writes the mirror.
        """
        address = self.store.address
        self.wait(print_line)
        if not self._lock.acquire(timeout=_HANGING_S):
            raise TimeoutError(f"An earlier session of this process still writes {address}.")
        try:
            self._write(writer=self._describe())
            found = read_owner(self.store)
        finally:
            self._lock.release()
        if found is None or (found["writer"] or {}).get("token") != self._token:
            raise _in_use(address, (found or {}).get("writer") or {})
        _held.add(self._place)
        self.is_owner, self._lost, self._ended = True, None, Event()
        Thread(target=self._follow, name="surestep-mirror-owner", daemon=True).start()

    def start(self) -> None:
        """Have the next check write that the run folder has the id."""
        if not self.has_started:
            self.has_started, self._renewed = True, float("-inf")

    def record_checkpoint(self) -> None:
        """Write that a checkpoint is complete in the mirror, unless it says so already."""
        if not self.has_saved:
            with self._lock:
                self.has_saved, self._renewed = True, float("-inf")
            self.check()

    def check(self) -> None:
        """Check that no other process may write the mirror; renew first if that is late.

        Raises:
            OwnerChangedError: another process writes the mirror now.
            Exception: the mirror does not answer, and this process has not renewed for long.
        """
        if self._lost is None:
            self._renew(STALE_S / 2)
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Write that no process writes the mirror, if this one does.

        Raises:
            Exception: whatever the driver raises; this process is still the writer.
        """
        with self._lock:
            if self.is_owner:
                found = read_owner(self.store)
                if found is not None and (found["writer"] or {}).get("token") == self._token:
                    self._write(writer=None)
                self.forget()

    def try_release(self) -> None:
        """Release the mirror; if that fails, another machine must wait for STALE_S."""
        try:
            self.release()
        except Exception:  # the error that ends the run is the one to raise
            self.is_named |= self.is_owner
        self.forget()

    def forget(self) -> None:
        """Let another session of this process write the mirror; the mirror is not changed."""
        self._ended.set()
        if self.is_owner:  # otherwise another session may write it
            self.is_owner = False
            _held.discard(self._place)

    def _follow(self) -> None:
        while not self._ended.wait(RENEW_S / 4):
            with suppress(Exception):  # the next check raises it again, if it matters
                self._renew(RENEW_S)

    def _renew(self, after_s: float) -> None:
        """Write that this process is alive, if it is the writer and the last time is long ago."""
        if not self.is_owner or time.clock_gettime(_CLOCK) - self._renewed < after_s:
            return
        with self._lock:
            if not self.is_owner or time.clock_gettime(_CLOCK) - self._renewed < after_s:
                return
            found = read_owner(self.store)
            writer = (found or {}).get("writer")
            if found is None or (writer is not None and writer["token"] == self._token):
                self._write(writer=self._describe())
                return
            by = "a command" if writer is None else _describe_process(writer)
            self._lost = OwnerChangedError(
                f"{self.store.address} was taken over by {by}. The run continues without a "
                "mirror, in its local folder."
            )
            self.forget()  # last: a check passes if this process neither writes nor lost it

    def _describe(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "machine": describe_machine(),
            "pid": os.getpid(),
            "token": self._token,
            "time": time.time(),
        }

    def _write(self, writer: dict[str, Any] | None) -> None:
        content = {
            "format": 1,
            "id": self.run_id,
            "address": self.store.address,
            "started": self.has_started,
            "saved": self.has_saved,
            "writer": writer,
        }
        self.store.write(FILE, f"{dumps(content, indent=1)}\n".encode())
        self._renewed = time.clock_gettime(_CLOCK)


def release_owner(store: Store) -> bool:
    """Write that no process writes a mirror; return whether one did, by what it says."""
    found = read_owner(store)
    if found is None or found["writer"] is None:
        return False
    store.write(RELEASED, found["writer"]["token"].encode())
    text = dumps({**found, "writer": None}, indent=1)
    store.write(FILE, f"{text}\n".encode())
    return True


def _describe_process(writer: dict[str, Any]) -> str:
    return f"process {writer['pid']} on {writer['host']}"


def _has_ended(writer: dict[str, Any]) -> bool:
    """Return whether a writer is known to be dead, without waiting."""
    if writer["pid"] == os.getpid() and writer.get("machine") == describe_machine():
        return True  # this process has another token
    return has_ended(writer.get("machine"), writer["pid"])


def _wait_for(store: Store, writer: dict[str, Any], print_line: Callable[[str], None]) -> None:
    """Watch a writer for STALE_S; return when it has ended or was not renewed.

    Only a change counts, so the clocks of the two machines need not agree.
    """
    print_line(
        f"{store.address} was last written by {_describe_process(writer)}. Waiting up to "
        f"{STALE_S:.0f} s to see whether that still runs."
    )
    end = time.monotonic() + STALE_S
    while time.monotonic() < end:
        time.sleep(POLL_S)
        now = (read_owner(store) or {}).get("writer")
        if now is None:
            return
        if now != writer:
            raise _in_use(store.address, now)


def _in_use(address: str, writer: dict[str, Any]) -> RunError:
    holder = _describe_process(writer) if writer else "another process"
    return RunError(
        f"{address} is in use by {holder}. Wait for it, stop it, or take the mirror over, and the "
        f"other process continues without it: surestep mirror release {address}"
    )
