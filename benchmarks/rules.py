"""The work that every contestant does, and the clock of its steps.

AdamW, clipping by norm, a schedule per step, the loss read on the host every 50 steps. A round
is a whole training run; the clock is read *inside* it, at the start of the first timed step and at
the start of the step after the last, so the start-up and the end of a framework are not timed. The
processor time and the page faults of the process are measured too.
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
# Peers use every option that their users can set, such as fused AdamW. The plain loop uses the
# default AdamW. Optimizations that need custom code are in `fast_by_hand` only.
PEER_FUSED = True


def lr_factor(step: int, total: int) -> float:
    """Return the factor on the learning rate: linear over the first tenth, then cosine to 0."""
    warmup = max(1, total // 10)
    if step < warmup:
        return step / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (total - warmup)))


class Usage(NamedTuple):
    """Time, and resources that the process has used so far."""

    wall_s: float
    cpu_s: float
    faults: int


def read_usage(device: str) -> Usage:
    """Return what was used, once a GPU has finished what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    used = getrusage(RUSAGE_SELF)
    return Usage(time.perf_counter(), used.ru_utime + used.ru_stime, used.ru_minflt)


class Stopwatch:
    """Measure the steps of one run on a device; call `tick` at the start of each step."""

    def __init__(self, steps: int, device: str = "cpu") -> None:
        self.steps, self._device = steps, device
        self.total = WARM_UP_STEPS + steps + 1
        self.began = self.ended = Usage(math.nan, math.nan, 0)
        self._ticks = 0

    def tick(self) -> None:
        ticks = self._ticks
        self._ticks = ticks + 1
        if ticks == WARM_UP_STEPS:
            self.began = read_usage(self._device)
        elif ticks == WARM_UP_STEPS + self.steps:
            self.ended = read_usage(self._device)

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
    """The result of a contestant, which proves that it did the work."""

    stopwatch: Stopwatch
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float]  # as read on the host, one every 50 steps
