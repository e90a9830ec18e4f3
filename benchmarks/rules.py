"""What every contestant must do in the same way, and how its steps are timed.

AdamW, clipping by norm, a schedule per step, the loss read on the host every 50 steps. A round
is a whole training run; the clock is read *inside* it, at the start of the first timed step and at
the start of the step after the last, so no framework pays for its start-up or tear-down. Beside the
clock stand the processor time and the page faults of the process.
"""

import math
import time
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from typing import NamedTuple

import torch
from torch import nn

LR = 1e-3
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
READ_EVERY = 50
WARM_UP_STEPS = 5  # with the steps of a task a multiple of 50: the same reads for all
# Peers get every switch their users can set, so also PyTorch's fast AdamW; the plain loop is
# The usual AdamW. Optimizations that need custom code are in `fast_by_hand` only.
PEER_FUSED = True


def lr_factor(step: int, total: int) -> float:
    """Give the part of the full rate at `step`: linear over the first tenth, then cosine to 0."""
    warmup = max(1, total // 10)
    if step < warmup:
        return step / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (total - warmup)))


class Reading(NamedTuple):
    """What the process had used at one moment."""

    wall_s: float
    cpu_s: float
    faults: int


def read_usage() -> Reading:
    used = getrusage(RUSAGE_SELF)
    return Reading(time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_minflt)


class Stopwatch:
    """Measure the steps of one run from inside; `tick` is called as each step begins."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.total = WARM_UP_STEPS + steps + 1
        self.began = self.ended = Reading(math.nan, math.nan, 0)
        self._ticks = 0

    def tick(self) -> None:
        ticks = self._ticks
        self._ticks = ticks + 1
        if ticks == WARM_UP_STEPS:
            self.began = read_usage()
        elif ticks == WARM_UP_STEPS + self.steps:
            self.ended = read_usage()

    @property
    def step_us(self) -> float:
        """The mean time of a timed step in microseconds; NaN if the run ended early."""
        return (self.ended.wall_s - self.began.wall_s) / self.steps * 1e6

    @property
    def cpu_us(self) -> float:
        """The mean processor time of a timed step in microseconds."""
        return (self.ended.cpu_s - self.began.cpu_s) / self.steps * 1e6

    @property
    def faults(self) -> float:
        """The mean number of page faults of a timed step."""
        return (self.ended.faults - self.began.faults) / self.steps


@dataclass(frozen=True)
class Trained:
    """What a contestant hands back: enough to prove that it did the work."""

    stopwatch: Stopwatch
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float]  # as read on the host, one every 50 steps
