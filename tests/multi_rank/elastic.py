"""A recipe for machines that come and go: it waits for each change, and then trains to its end.

ELASTIC names the folder by whose files the test and the ranks tell each other how far they are.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

import surestep
from tests.multi_rank.cases import data, net64

config = surestep.Config(
    max_steps=400,
    batch_size=20,
    optim={"name": "sgd", "lr": 0.05},
    checkpoint={"every": "2 steps"},
    logging={"progress": "quiet"},
)
PACE_S = 0.2  # a step, where something is waited for: long enough for torchrun to come
BOTH = 3  # steps that two ranks take at least


def task() -> surestep.Task:
    """Tell three classes apart, in fp64."""
    return surestep.Task(net64, nn.CrossEntropyLoss(), train=data(dtype=torch.float64))


class Waits(surestep.Callback):
    """Goes slowly until a second rank has come, and slowly until it has gone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ranks = folder, int(os.environ["WORLD_SIZE"])
        self.steps = 0

    def on_step(self, state, outcome):
        self.steps += 1
        if self.steps == BOTH:
            (self.folder / f"ranks-{self.ranks}").touch()
        if self.ranks == 2 or not (self.folder / "ranks-2").exists():
            time.sleep(PACE_S)


callbacks = [Waits(Path(os.environ["ELASTIC"]))] if "ELASTIC" in os.environ else []
