"""A recipe for several ranks with data workers; each process writes a file when it starts.

GROUP names the folder for that: `rank-R-PID`, `worker-R-PID`, and a line in `steps` for each step.
If it has a file `hold`, rank 0 waits after the step with that number until the file changes.
"""

import math
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

import surestep
from tests.multi_rank.cases import accuracy, data

GROUP, RANK = Path(os.environ["GROUP"]), os.environ.get("RANK", "0")
STEP_S, RENAME_S = 0.03, 0.1  # delay of a step and of the rename of a save

config = surestep.Config(
    max_steps=40,
    batch_size=20,
    data={"num_workers": 1},
    optim={"lr": 1e-2},
    checkpoint={"every": "3 steps"},
    validation={"every": "8 steps"},
    logging={"progress": "plain", "every": "5 steps"},
)


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples by index, with noise drawn at loading."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if get_worker_info() is not None:
            (GROUP / f"worker-{RANK}-{os.getpid()}").touch()
        return self.x[index] + 0.1 * torch.randn(self.x.shape[1]), self.y[index]


def task(dropout: float = 0.2) -> surestep.Task:
    """Classify three classes."""
    net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Dropout(dropout), nn.Linear(64, 3))
    parts = {"train": Rows(), "val": data(), "metrics": {"accuracy": accuracy}}
    return surestep.Task(net, nn.CrossEntropyLoss(), **parts)


class Reports(surestep.Callback):
    """Records each step of rank 0, and delays it."""

    def on_step(self, state, result):
        if RANK == "0":
            with (GROUP / "steps").open("a") as file:
                file.write(f"{os.getpid()} {result.step}\n")
            while result.step >= _held_step():
                time.sleep(0.01)
        time.sleep(STEP_S)


def _held_step() -> float:
    path = GROUP / "hold"
    return int(path.read_text()) if path.exists() else math.inf


def _slow_rename(event: str, about: tuple) -> None:
    if event == "os.rename" and Path(str(about[1])).name.startswith("step-"):
        time.sleep(RENAME_S)


if get_worker_info() is None:
    (GROUP / f"rank-{RANK}-{os.getpid()}").touch()
    sys.addaudithook(_slow_rename)
callbacks = [Reports()]
