"""Run folders for the suites: one is trained, once in a process, and copied for each test."""

import json
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surestep.config.config import Config
from surestep.engine.task.task import Task
from surestep.record.io import dumps
from surestep.record.run import Run
from surestep.tracking.points import read_points
from surestep.trainer.trainer import Trainer

Values = list[tuple[int, str, float]]  # step, name and value
_OPTIONS: dict[str, Any] = {
    **{"max_steps": 12, "batch_size": 8, "validation.every": "6 steps"},
    **{"logging.every": "2 steps", "logging.per_layer": True, "logging.histograms": "6 steps"},
    **{"logging.progress": "quiet", "optim.groups": ["*bias lr=0.5x"]},
}


@cache
def _trained() -> tuple[Path, Any]:
    """Train a run in a temporary folder, which is deleted when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="surestep-testing-")
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    data = (x, x.sum(1, keepdim=True))
    task = Task(lambda: nn.Linear(3, 1), "mse", data, val=data)
    path = Path(folder.name) / "run"
    Trainer(task, Config.from_options(_OPTIONS), run=path).fit()
    return path, folder


def copy_run(to: Path) -> Path:
    """Copy a finished run of 12 steps, with checkpoints, metrics, histograms and findings.

    Args:
        to: the new run folder.

    Returns:
        The new run folder.
    """
    shutil.copytree(_trained()[0], to)
    return to


def read_lines(run: Path) -> list[str]:
    """Return the lines of the events of a run, of which the last one is its end."""
    return (run / "events.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)


def write_lines(run: Path, lines: Iterable[str]) -> None:
    """Replace the events of a run."""
    (run / "events.jsonl").write_text("".join(lines), encoding="utf-8")


def insert_events(run: Path, events: Iterable[dict[str, Any]]) -> None:
    """Add events before the end of a run, with the fields that a log point has."""
    *before, end = read_lines(run)
    time = json.loads(end)["time"]
    usual = {"time": time, "epoch": 0, "lr": [0.1], "grad_norm": [1.0], "items": 8.0, "samples": 8}
    usual |= {"seconds": 0.1, "data_wait_s": 0.0, "peak_memory": 100}
    write_lines(run, [*before, *(dumps({**usual, **event}) + "\n" for event in events), end])


def expected_values(run: Path) -> Values:
    """Return every value that a tracker should have recorded."""
    return [
        (point.step, name, value)
        for event in Run(run).events()
        for point in read_points(event)
        for name, value in point.values.items()
    ]
