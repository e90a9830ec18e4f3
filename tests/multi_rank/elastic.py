"""A recipe for machines that join and leave: it waits for each change, then trains to its end.

ELASTIC names a folder in which the test and the ranks report their progress to each other.
"""

import os
import time
from pathlib import Path

import torch
from torch import nn

import surestep
from tests.multi_rank.cases import data, net64
from tests.multi_rank.killed_recipe import has_received

config = surestep.Config(
    max_steps=400,
    batch_size=20,
    optim={"name": "sgd", "lr": 0.05},
    checkpoint={"every": "2 steps"},
    logging={"progress": "quiet"},
)
PACE_S = 0.2  # a step of two ranks: long enough for the test to end one
BOTH = 3  # steps that two ranks take at least


def task() -> surestep.Task:
    """Classify three classes, in fp64."""
    return surestep.Task(net64, nn.CrossEntropyLoss(), train=data(dtype=torch.float64))


class Waits(surestep.Callback):
    """Waits for a second rank, and steps slowly until it has left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ranks = folder, int(os.environ["WORLD_SIZE"])
        self.steps = 0

    def on_step(self, state, outcome):
        self.steps += 1
        if self.steps == BOTH:
            (self.folder / f"ranks-{self.ranks}").touch()
        if self.ranks == 2:
            time.sleep(PACE_S)
        while self.steps == BOTH and self.ranks == 1 and not self.may_go_on():
            time.sleep(0.01)

    def may_go_on(self) -> bool:
        """Return whether a second rank has trained, or torchrun restarts the ranks with it."""
        return (self.folder / "ranks-2").exists() or has_received()


callbacks = [Waits(Path(os.environ["ELASTIC"]))] if "ELASTIC" in os.environ else []
