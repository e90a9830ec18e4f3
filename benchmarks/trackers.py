"""Measure what three trackers together cost a step: TensorBoard, an MLflow server, W&B offline.

python -m benchmarks.trackers                          # about ten minutes
python -m benchmarks.trackers --tasks digits --rounds 3
python -m benchmarks.trackers --outage                 # the MLflow server does not answer

Each measurement is a fresh process, with and without the trackers in turn. The steps are timed for
some seconds after all trackers have started, so start-up is not part of it. W&B's service and the
MLflow server are other processes, whose processor time is not counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.run import pick
from benchmarks.step_time import NAMES, StepTime, describe, measure

ALL = ("tensorboard", "mlflow", "wandb")
PORT = 5917
SILENT = "http://127.0.0.1:9"  # nothing listens there


def measure_tracked(name: str, trackers: tuple[str, ...], folder: Path) -> StepTime:
    """Train in this process; return the time of a step once all trackers have started."""
    is_silent = os.environ["MLFLOW_TRACKING_URI"] == SILENT
    records = [
        folder / "trackers" / f"{tracker}.json"
        for tracker in trackers
        if not (is_silent and tracker == "mlflow")
    ]

    def has_started() -> bool:
        return all(map(_has_delivered, records))

    return measure(name, {"logging.trackers": trackers}, folder, has_started)


def _has_delivered(record: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(json.loads(record.read_text())["offset"] > 0)
    return False


@contextmanager
def serve_mlflow(folder: Path) -> Iterator[str]:
    """Run an MLflow server with a store in SQLite; yield its address."""
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(PORT)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = subprocess.DEVNULL
    server = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    url = f"http://127.0.0.1:{PORT}"
    try:
        for _ in range(1800):
            time.sleep(0.1)
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=1):
                break
        yield url
    finally:
        os.killpg(server.pid, 9)
        server.wait()


def run_fresh(name: str, trackers: tuple[str, ...], url: str) -> StepTime:
    """Measure in a fresh process."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = {"HOME": folder, "WANDB_MODE": "offline", "WANDB_DATA_DIR": folder}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.trackers", "--measure", name, *trackers],
            env={**os.environ, **home, "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": url},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return StepTime(*json.loads(done.stdout.splitlines()[-1]))


def compare(name: str, rounds: int, trackers: tuple[str, ...], url: str) -> str:
    """Return the time of a step with the trackers, relative to one without."""
    bare, tracked = [], []
    for _ in range(rounds):
        bare.append(run_fresh(name, (), url))
        tracked.append(run_fresh(name, trackers, url))
    return describe(name, bare, tracked)


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tasks", default="", help=f"of {','.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    parser.add_argument("--trackers", default=",".join(ALL), help="what is compared with none")
    parser.add_argument("--outage", action="store_true", help="the MLflow server does not answer")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, *trackers = arguments.measure
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = measure_tracked(name, tuple(trackers), Path(folder) / "run")
        print(json.dumps(found))
        return
    chosen = tuple(arguments.trackers.split(","))
    print(f"with {', '.join(chosen)}, relative to a run without; median and its 95% interval:")
    tasks = pick(arguments.tasks, list(NAMES), "task")
    if arguments.outage:
        for name in tasks:
            print(compare(name, arguments.rounds, chosen, SILENT), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder, serve_mlflow(Path(folder)) as url:
        for name in tasks:
            print(compare(name, arguments.rounds, chosen, url), flush=True)


if __name__ == "__main__":
    main()
