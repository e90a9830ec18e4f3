"""What every contestant must do alike, and how its steps are timed.

AdamW, clipping by norm, a schedule per step, the loss read on the host every 50 steps. A round
is a whole training run; the clock is stamped *inside* it, at the start of the first timed step and
at the start of the step after the last, so no framework pays for its start-up or tear-down.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import nn

LR = 1e-3
WEIGHT_DECAY = 0.01
MAX_GRAD_NORM = 1.0
READ_EVERY = 50
WARM_UP_STEPS = 5  # with the steps of a task a multiple of 50: the same reads for all
# Peers get every switch their users can set, so also PyTorch's fast AdamW; the plain loop is
# AdamW as people write it. Tricks that need code of one's own are in `fast_by_hand` only.
PEER_FUSED = True


def lr_factor(step: int, total: int) -> float:
    """Give the part of the full rate at `step`: linear over the first tenth, then cosine to 0."""
    warmup = max(1, total // 10)
    if step < warmup:
        return step / warmup
    return 0.5 * (1.0 + math.cos(math.pi * (step - warmup) / (total - warmup)))


class Stopwatch:
    """Measure the steps of one run from inside; `tick` is called as each step begins."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.total = WARM_UP_STEPS + steps + 1
        self.began = self.ended = math.nan
        self._ticks = 0

    def tick(self) -> None:
        ticks = self._ticks
        self._ticks = ticks + 1
        if ticks == WARM_UP_STEPS:
            self.began = time.perf_counter()
        elif ticks == WARM_UP_STEPS + self.steps:
            self.ended = time.perf_counter()

    @property
    def step_us(self) -> float:
        """The mean time of a timed step in microseconds; NaN if the run was cut short."""
        return (self.ended - self.began) / self.steps * 1e6


@dataclass(frozen=True)
class Trained:
    """What a contestant hands back: enough to prove that it did the work."""

    stopwatch: Stopwatch
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float]  # as read on the host, one every 50 steps
