"""Mutate the files of a good run repeatedly: each is accepted, or a SurestepError is raised.

    python -m tests.torture.fuzz_runs --seconds 300 --seed 1

Like `fuzz_checkpoints`, with its mutations, for the files of a run folder.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

import surestep
from surestep.base.errors import SurestepError
from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.reader import read_info
from surestep.record.checkpoint.retention import explain_retention
from surestep.record.incident import read_incident
from surestep.record.lock import RunLock
from surestep.record.run import Run
from surestep.record.skipped_samples import read_samples, write_skipped
from tests import tiny
from tests.torture.fuzz_checkpoints import mutate_bytes, mutate_json
from tests.trainer.test_replay import DIVIDES, OPTIONS, failed, task

WITHIN_S = 60  # for one input, on a busy machine
SKIP = {"step": 1, "epoch": 0, "positions": [0, 8], "samples": [0, 3], "reason": "nonfinite"}


def good_run(folder: Path) -> Path:
    """Write a run with checkpoints, an incident and skipped steps."""
    failed(folder / "run", DIVIDES, {})
    path = folder / "run"
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "skipped", "time": 1.0, **SKIP}) + "\n")
    write_skipped(path / "skipped.json", Run(path).skipped)
    incident = next((path / "incidents").iterdir())
    return incident.rename(path / "incident").parent


def _incident(path: Path) -> None:
    found = read_incident(path / "incident")
    found.tensors()


def _kept(path: Path) -> None:
    run = Run(path)
    explain_retention(
        run.path, run.monitor, [read_info(each) for each in list_checkpoints(run.checkpoints)]
    )


def _hold(path: Path) -> None:
    RunLock(path).release()


def _on(path: Path) -> None:
    """Resume the finished run."""
    surestep.prepare(task(DIVIDES), tiny.config(**OPTIONS), run=path).close()


READERS: dict[str, tuple[Callable[[Path], object], ...]] = {
    "config.json": (lambda path: Run(path).config, _on),
    "status.json": (lambda path: Run(path).status, lambda path: Run(path).best, _on),
    "events.jsonl": (
        lambda path: deque(Run(path).events(), maxlen=0),
        lambda path: Run(path).skipped,
        _on,
    ),
    "plan.json": (_kept,),
    "skipped.json": (lambda path: read_samples(path / "skipped.json"),),
    "incident/incident.json": (_incident,),
    "incident/batch.safetensors": (_incident,),
    "lock": (_hold,),
}


def mutated(data: bytes, name: str, draw: random.Random) -> bytes:
    """Return mutated bytes of a file; JSON is mostly mutated as a tree."""
    if not name.endswith((".json", ".jsonl")) or draw.random() < 0.2:
        return mutate_bytes(data, draw)
    lines = data.splitlines(keepends=True) if name.endswith(".jsonl") else [data]
    at = draw.randrange(len(lines))
    with suppress(RecursionError):  # a tree nested into itself too deeply for Python
        tree = mutate_json(json.loads(lines[at]), draw)
        lines[at] = json.dumps(tree).encode("utf-8", "surrogatepass") + b"\n"
    return b"".join(lines)


def check(good: Path, folder: Path, draw: random.Random) -> str:
    """Read a run with a mutated file; return whether it was rejected or accepted.

    Raises:
        Exception: a reader raised anything but a SurestepError.
    """
    name = draw.choice(list(READERS))
    path = folder / "run"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(good, path)
    (path / name).write_bytes(mutated((good / name).read_bytes(), name, draw))
    came = "taken"
    for read in READERS[name]:
        try:
            read(path)
        except SurestepError as error:
            came = "refused"
            if len(str(error)) > 5000:
                raise RuntimeError("a message without end") from error
    return came


def fuzz(seed: int, seconds: float, folder: Path) -> tuple[int, Counter[str], list[str]]:
    """Try inputs for so many processor seconds; return their number, outcomes and crashes."""
    good, came, crashes = good_run(folder / "good"), Counter[str](), []
    end, number = time.process_time() + seconds, 0
    while time.process_time() < end:
        signal.alarm(WITHIN_S)
        try:
            came[check(good, folder, random.Random(f"{seed} {number}"))] += 1
        except Exception as error:
            came["crashed"] += 1
            frames = traceback.extract_tb(error.__traceback__)
            at = next((f for f in reversed(frames) if "surestep/" in f.filename), frames[-1])
            crashes.append(f"{number}: {at.filename}:{at.lineno}: {error!r}"[:300])
        finally:
            signal.alarm(0)
        number += 1
    return number, came, crashes


def main() -> int:
    """Fuzz with the options of the command line; print numbers and crashes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    said = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as folder:
        tried, came, crashes = fuzz(said.seed, said.seconds, Path(folder))
    kinds = {crash.split(": ", 1)[1][:90]: crash for crash in crashes}
    print(f"{tried} inputs of seed {said.seed}: {dict(came)}")
    print("\n".join(kinds.values()))
    return 1 if crashes else 0


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {WITHIN_S} s")


if __name__ == "__main__":
    sys.exit(main())
