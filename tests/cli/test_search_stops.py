"""Searches whose trials hang, in every way that a signal of Python does not end."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from surestep.record.run import Run
from surestep.tuning import process
from tests.cli.searches import TRIALS, Shell, states, trials
from tests.cli.searches import search as search
from tests.cli.searches import space as space

LAUNCHES = pytest.mark.slow("starts processes")
PYTHON = sys.executable

HANGS = """
import ctypes
import os
import time
from pathlib import Path


class Hangs(surestep.Callback):
    def on_step(self, state, result):
        kind = Path("hang").read_text() if Path("hang").exists() else ""
        if result.step == 5 and kind:
            Path(f"hung-{os.getpid()}").touch()
            if kind == "C":  # it keeps the lock of the interpreter: no thread runs, no handler
                ctypes.PyDLL(None).sleep(600)
            while True:
                time.sleep(0.01)


callbacks = [Hangs()]
"""


@pytest.fixture
def hangs(folder):
    """Write a recipe whose trials hang at a step, in Python or in C; return its path."""
    recipe = folder / "hangs.py"
    recipe.write_text(Path(TRIALS).read_text() + HANGS)

    def write(kind):
        (folder / "hang").write_text(kind)
        return recipe

    return write


def wait_for_the_end():
    """Wait until no process runs that left a file `hung-PID`; they would hang for ten minutes.

    A rank that was killed is there until its new parent has collected it. One that was not killed
    ends a minute after its worker.
    """
    end = time.monotonic() + 50
    for path in Path().glob("hung-*"):
        while Path(f"/proc/{path.name.removeprefix('hung-')}").exists():
            assert time.monotonic() < end, f"{path} still runs"
            time.sleep(0.05)


@LAUNCHES
@pytest.mark.parametrize(("kind", "workers", "nproc"), [("Python", 2, 1), ("C", 2, 1), ("C", 1, 2)])
def test_sigterm_ends_workers_whose_trials_hang_and_the_trials_are_resumed(
    hangs, space, monkeypatch, kind, workers, nproc
):
    """The search ends before a trial would be killed after another signal, on a busy machine too.

    tests/tuning/test_process.py has the 10 s of SIGTERM, by a clock of its own: the trial is killed
    5 s after the signal, and what follows waits for at most 5 s.
    """
    warm = sys.executable
    if nproc > 1:
        # The search kills ranks as children of their launcher. Those of a warm one are not.
        monkeypatch.setattr(sys, "executable", PYTHON)
    ranks = ("--nproc", nproc, *(("--parallel.strategy", "ddp") if nproc > 1 else ()))
    words = (hangs(kind), *space(), "--trials", workers, "--study", "study", "--threads", 1, *ranks)
    shell = Shell(*words, "--workers", workers)
    shell.wait_for("hung-*")
    shell._wait(lambda: len([*Path().glob("hung-*")]) == workers * nproc, "too few hang")
    started = time.monotonic()
    shell.process.terminate()
    code, out, err = shell.finish()
    assert time.monotonic() - started < process.LONGEST_SAVE_S
    assert code == 75, err
    assert out.count("waiting ") == workers, out
    assert "stopped by SIGTERM" in out
    wait_for_the_end()
    os.remove("hang")
    monkeypatch.setattr(sys, "executable", warm)
    code, out, err = Shell(*words).finish()
    assert code == 0, err
    assert states(trials()) == ["finished"] * workers
    for number in range(workers):
        events = [event["event"] for event in Run(Path(f"study/trials/{number:04d}")).events()]
        assert "resume" in events


@LAUNCHES
def test_timeout_ends_a_search_whose_trial_hangs(search, hangs, monkeypatch):
    monkeypatch.setattr(process, "LONGEST_SAVE_S", 1.0)
    hung = SimpleNamespace(  # its time is over once the trial hangs
        monotonic=lambda: time.monotonic() + 100.0 * any(Path().glob("hung-*"))
    )
    monkeypatch.setattr(process, "time", hung)
    answer, found = search("--trials", 2, "--timeout", "90 s", recipe=hangs("C"))
    assert answer.code == 0, answer.err
    assert "Stopped by timeout" in answer.out
    assert states(found) == ["waiting"]


@LAUNCHES
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--trial-timeout", "took more than 10 min 0 s (--trial-timeout)"),
        ("--step-timeout", "took no step for 10 min 0 s (--step-timeout)"),
    ],
)
def test_trial_that_exceeds_a_limit_fails_and_the_search_continues(
    search, hangs, monkeypatch, option, reason
):
    def monotonic():
        return time.monotonic() + 1000.0 * len([*Path().glob("hung-*")])

    def note(line):
        Path("hang").unlink(missing_ok=True)  # the next trial trains
        return print(line, file=sys.stderr)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr("surestep.tuning.worker.print_escaped", lambda line, _: note(line))
    answer, found = search("--trials", 2, option, "10m", recipe=hangs("Python"))
    assert answer.code == 1
    assert states(found) == ["failed", "finished"]
    assert found[0]["reason"] == reason
    assert Run(Path("study/trials/0000")).last.step == 4
    wait_for_the_end()
