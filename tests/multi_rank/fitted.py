"""Runs of two ranks with micro_batch_size="fit", on one of which memory runs out.

`starter.py` calls `main`, which forks the ranks of each case, and then those that resume it.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from tests.laws.support.tasks import rows
from tests.multi_rank.forked import run_forked

STEPS = 6
CASES = {  # the rank, the first step and the rows that fit, and the strategy
    "trial": (1, 0, 3, "ddp"),
    "later": (1, 3, 5, "ddp"),
    "sharded": (0, 3, 5, "fsdp"),
}
LATER = ("later", "sharded")
OPTIONS: dict[str, Any] = {
    "max_steps": STEPS,
    "batch_size": 16,
    "checkpoint": {"every": "2 steps"},
    "logging": {"every": "1 step", "progress": "quiet"},
    "parallel": {"timeout_s": 20},
}


class Limited(nn.Linear):
    """Has memory for some rows on one rank, from a step on."""

    def __init__(self, rank: int, step: int, most: int) -> None:
        torch.manual_seed(1)
        super().__init__(10, 3)
        self.rank, self.step, self.most = rank, step, most
        self.number = [0]

    def forward(self, x: Tensor) -> Tensor:
        is_here = int(os.environ.get("RANK", "0")) == self.rank and self.training
        if is_here and self.number[0] >= self.step and len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(x)


class Counts(surestep.Callback):
    def __init__(self, number: list[int]) -> None:
        self.number = number

    def on_batch(self, state: Any, batch: Any) -> None:
        self.number[0] = state.progress.step + 1


def train(folder: Path, name: str, *, is_limited: bool) -> None:
    torch.set_num_threads(1)
    os.environ["SURESTEP_CACHE_DIR"] = str(folder / f"{name}-cache")
    rank, step, most, strategy = CASES[name]
    model = Limited(rank, step, most if is_limited else 99)
    task = surestep.Task(model, nn.CrossEntropyLoss(), rows(64))
    parallel = {**OPTIONS["parallel"], "strategy": strategy}
    config = surestep.Config(**OPTIONS | {"parallel": parallel}, micro_batch_size="fit")
    callbacks = [Counts(model.number)]
    surestep.Trainer(task, config, run=folder / "runs" / name, callbacks=callbacks).fit()


def main(folder: Path) -> None:
    for part, names in (("limited", CASES), ("resumed", LATER)):
        (folder / part).mkdir()
        limited = part == "limited"
        acts = {name: partial(train, folder, name, is_limited=limited) for name in names}
        run_forked(folder / part, acts)
