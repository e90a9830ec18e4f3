"""The warm process: imports everything once, and forks a child for each request.

    python -m tests.torture.warm

Requests and answers are lines of JSON: {"do": "trial", "case": {...}, "folder": "...", ...}.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
FSYNC = os.fsync


def warm_up() -> None:
    """Import everything, and train once, so that no child needs to import."""
    import torch

    from tests.shortcuts import take_shortcuts

    torch.set_num_threads(1)  # before any operation, so that no thread pool is created
    take_shortcuts()
    from surestep.trainer.fit import fit
    from tests.torture.cases import Case
    from tests.torture.outcome import outcome
    from tests.torture.recipe import config, task

    case = Case(augmentation="numpy", precision="fp16", average=True)
    with tempfile.TemporaryDirectory() as folder:
        import surestep

        with surestep.prepare(task(case), config(case, resumed=False), run=folder) as session:
            fit(session)
            outcome(session)  # imports torch._dynamo
    gc.collect()
    gc.freeze()
    gc.disable()


def _trial(folder: str, case: dict[str, Any], **more: Any) -> dict[str, Any]:
    from tests.torture.cases import Case
    from tests.torture.trial import trial

    return asdict(trial(Case(**case), Path(folder), **more))


def _calls(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.saves import as_json, each_call

    return as_json(each_call(Path(folder), **more))


def _sizes(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.saves import as_json, each_size

    return as_json(each_size(Path(folder), **more))


def _kills(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.kills import kill_many

    return asdict(kill_many(Path(folder), **more))


def _flips(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.corruption import damage_all

    ends, wrong = damage_all(Path(folder), **more)
    return {"ends": ends, "wrong": wrong}


def _disks(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.disks import fill, limit, may_mount

    os.fsync = FSYNC  # it may fail on a full disk
    mounts = may_mount(Path(folder) / "mount")
    ends, wrong = fill(Path(folder), **more) if mounts else limit(Path(folder), [10_000, 100_000])
    return {"ends": ends, "wrong": wrong}


def _rollbacks(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.rollbacks import kill_around

    return kill_around(Path(folder), **more)


def _workers(folder: str, **more: Any) -> dict[str, Any]:
    from tests.torture.workers import kill_workers

    figures, wrong = kill_workers(Path(folder), seed=0, **more)
    return {**figures, "wrong": wrong}


DO: dict[str, Callable[..., dict[str, Any]]] = {
    **{"trial": _trial, "calls": _calls, "sizes": _sizes},
    **{"kills": _kills, "flips": _flips, "disks": _disks},
    **{"rollbacks": _rollbacks, "workers": _workers},
}


def serve() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of children must not mix with the answers
    warm_up()
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = DO[asked.pop("do")](**asked)
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


class Warm:
    """Starts the warm process and sends it requests."""

    def __init__(self) -> None:
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.warm"],
            cwd=REPOSITORY,
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def do(self, what: str, **asked: Any) -> dict[str, Any]:
        """Send a request, and wait for the answer."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"do": what, **asked}) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline() or '{"error": "it ended"}')
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{self.said()[-4000:]}")
        return answer

    def said(self) -> str:
        """Return the output of the process and its children."""
        self.errors.seek(0)
        return self.errors.read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(120)
        self.errors.close()


if __name__ == "__main__":
    serve()
