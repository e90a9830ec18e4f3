"""Measure what each value of logging.mlflow_model costs a run of one epoch, in processor time.

python -m benchmarks.mlflow_model              # about two minutes
python -m benchmarks.mlflow_model --rounds 5

The recipe `spiral`, a multilayer perceptron, trains once for each value while MLflow is away. Then
`surestep track replay` sends it to a new SQLite store, in a fresh process, whose time is measured.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

VALUES = ("off", "weights", "program")
AWAY = "http://127.0.0.1:9"  # nothing listens there


def run_surestep(folder: Path, uri: str, *words: str) -> float:
    """Run a command in a folder, in a fresh process; return its processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "surestep", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": uri},
        cwd=folder,  # where MLflow stores files
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def train(value: str, run: Path) -> None:
    """Train one epoch; what MLflow gets is left to the replay."""
    options = (
        "--track",
        "mlflow",
        "--logging.mlflow-model",
        value,
        "--logging.tracker-wait",
        "off",
    )
    run_surestep(run.parent, AWAY, "train", "spiral", "--epochs", "1", "--run", str(run), *options)


def replay(run: Path, folder: Path) -> float:
    """Send a copy of the run to a new store; return the processor time in seconds."""
    shutil.copytree(run, folder / "run")
    store = f"sqlite:///{folder}/mlflow.db"
    return run_surestep(folder, store, "track", "replay", str(folder / "run"), "--to", "mlflow")


def main() -> None:
    """Print a line for each value."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each value")
    rounds = parser.parse_args().rounds
    seconds: dict[str, list[float]] = {value: [] for value in VALUES}
    with tempfile.TemporaryDirectory() as temporary:
        for value in VALUES:
            train(value, Path(temporary) / value)
        for _ in range(rounds):
            for value in VALUES:
                with tempfile.TemporaryDirectory() as folder:
                    seconds[value].append(replay(Path(temporary) / value, Path(folder)))
    for value, found in seconds.items():
        print(f"{value:8} {statistics.median(found):.1f} s ({min(found):.1f} to {max(found):.1f})")


if __name__ == "__main__":
    main()
