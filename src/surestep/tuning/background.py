"""Workers in the background: `--workers K` starts K - 1 of them beside the one of the command.

`python -m surestep.tuning background` is one. Its settings are a line of JSON on stdin, which stays
open as long as the command lives: at its end the worker stops.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from surestep.base.errors import SurestepError
from surestep.base.processes import kill_tree
from surestep.base.text import print_escaped
from surestep.tuning.confirm import confirm_trials
from surestep.tuning.open import read_study
from surestep.tuning.process import StopRequests
from surestep.tuning.slots import Slot
from surestep.tuning.study import SearchStudy
from surestep.tuning.worker import Worker, WorkerOptions

_POLL_S = 0.2
_ENDS_S = 2.0  # for a worker to end after its trial was killed
_MOST_REPLACED = 3  # killed workers of one command


@contextmanager
def start_workers(
    count: int, study: SearchStudy, storage: str | None, options: WorkerOptions, stops: StopRequests
) -> Iterator[None]:
    """Start workers, and wait for them at the end of the block; they stop when this one does.

    Another worker replaces one that is killed, three times at most.

    Args:
        count: how many.
        study: the study, with the recipe that was typed.
        storage: URL of its database with the password; None is the recorded one.
        options: of each worker.
        stops: of this worker; what stops it stops them.
    """
    given = {
        "study": str(study.folder),
        "storage": storage or study.settings.storage,
        "options": asdict(options),
        "recipe": dict(study.settings.recipe),
    }
    workers = [_start(given) for _ in range(count)]
    is_over = threading.Event()
    watcher = threading.Thread(
        target=_replace_killed,
        args=(workers, given, stops, is_over),
        name="surestep-workers",
        daemon=True,
    )
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
        for worker in workers:
            if sys.exc_info()[0] is not None:
                _stop(worker, "an error of its command")
        for worker in workers:
            _wait(worker, stops)


def _start(given: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start a worker, and send it its settings."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "surestep.tuning", "background"],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches the command alone, which stops them
    )
    assert worker.stdin is not None
    with suppress(BrokenPipeError):  # it has ended, with a message
        worker.stdin.write(json.dumps(given).encode() + b"\n")
        worker.stdin.flush()
    return worker


def _replace_killed(
    workers: list["subprocess.Popen[bytes]"],
    given: dict[str, Any],
    stops: StopRequests,
    is_over: threading.Event,
) -> None:
    """Report each worker that a signal has killed, and start another one; pass on a stop."""
    left, reported = _MOST_REPLACED, set[int]()
    while not is_over.wait(_POLL_S):
        for index, worker in enumerate(workers):
            if stops.reason:
                _stop(worker, stops.reason)
            code = worker.poll()
            if code is None or code >= 0 or worker.pid in reported:
                continue
            reported.add(worker.pid)
            text = f"A worker was killed by {signal.Signals(-code).name}."
            if left and not stops.reason:
                left -= 1
                assert worker.stdin is not None
                with suppress(BrokenPipeError):
                    worker.stdin.close()
                workers[index] = _start(given)
                text += " Another one was started; it resumes the trial after the grace time."
            print_escaped(text, sys.stderr)


def _wait(worker: "subprocess.Popen[bytes]", stops: StopRequests) -> None:
    """Wait for a worker; one that is stopping is ended by a second Ctrl-C."""
    assert worker.stdin is not None
    is_interrupted = False
    while worker.poll() is None:
        stops.wait(_POLL_S)
        if stops.reason:
            _stop(worker, stops.reason)
        if stops.at_once and not is_interrupted:
            is_interrupted = True
            worker.send_signal(signal.SIGINT)
        if time.monotonic() > stops.kill_at + _ENDS_S:
            kill_tree(worker.pid)
    with suppress(BrokenPipeError):
        worker.stdin.close()


def _stop(worker: "subprocess.Popen[bytes]", reason: str) -> None:
    """Let a worker save and stop."""
    assert worker.stdin is not None
    if not worker.stdin.closed:
        with suppress(BrokenPipeError):
            worker.stdin.write(reason.encode())
            worker.stdin.close()


def main(words: Sequence[str]) -> int:
    """Work until nothing is left or the command is gone; return the exit code.

    Args:
        words: of the command line; there are none.
    """
    given = json.loads(sys.stdin.readline())
    options = WorkerOptions(**given["options"])
    with StopRequests(options.timeout_s) as stops:

        def watch() -> None:
            stops.stop(sys.stdin.read() or "the end of its command")

        threading.Thread(target=watch, name="surestep-command", daemon=True).start()
        try:
            study = read_study(Path(given["study"]), given["storage"])
            study.settings = replace(study.settings, recipe=given["recipe"])
            with Slot.take(study.folder) as slot:
                worker = Worker(study, options, stops)
                worker.work(slot)
                if options.confirm and not stops.reason:
                    confirm_trials(worker, slot)
        except SurestepError as error:
            print_escaped(f"{type(error).__name__}: {error}", sys.stderr)
            return 1
    return 0
