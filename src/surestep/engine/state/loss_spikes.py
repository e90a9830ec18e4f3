"""Loss spikes: losses far above those before them, found among what a log point has read.

z = (loss - median) / scale, over the last WINDOW finite losses. Each loss is compared only with
those before it, so the same are found wherever the log points are. A fall is never a spike.
"""

import math
import statistics
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from surestep.engine.batch import Batch

WINDOW = 128
LEAST = 32  # losses before the first comparison
# In one run of each recipe that ships the largest was 6.2 (tabular, whose losses have a long tail),
# then 4.9 (spiral), 2.6 (imbalanced) and 2.5 (digits).
THRESHOLD = 10.0
NORMAL = 1.4826  # the standard deviation of a normal distribution in median absolute deviations
UPPER = 1.2816  # its 90% quantile in standard deviations
FLOOR = 0.05  # of the median: losses that hardly differ make nothing a spike that is near them
STRETCH = 8  # steps that the first rollback leaves out; each further one doubles them


class LossSpike(NamedTuple):
    """A loss far above those before it: `median` is of so many of them, `n_losses`."""

    step: int
    loss: float
    z: float
    median: float
    n_losses: int


@dataclass
class SpikeDetector:
    """What the next losses are compared with, and what was left out after spikes; a part of State.

    Attributes:
        losses: the last finite ones, oldest first.
        skipped_steps: the first and last step of each stretch.
        rollbacks: how often the run went back.
    """

    losses: list[float] = field(default_factory=list)
    skipped_steps: list[tuple[int, int]] = field(default_factory=list)
    rollbacks: int = 0

    def find(self, first_step: int, losses: Sequence[float | None]) -> list[LossSpike]:
        """Take in the losses of the steps from `first_step` on; return the spikes in them."""
        found = []
        kept, ordered = self.losses, sorted(self.losses)
        for step, loss in enumerate(losses, first_step):
            if loss is None or not math.isfinite(loss):
                continue
            count = len(ordered)
            # This cheap comparison excludes nine of ten losses.
            if count >= LEAST and loss > ordered[count * 9 // 10]:
                median, scale = _spread(ordered)
                if scale and loss - median > THRESHOLD * scale:
                    found.append(LossSpike(step, loss, (loss - median) / scale, median, count))
            kept.append(loss)
            insort(ordered, loss)
            if count == WINDOW:
                del ordered[bisect_left(ordered, kept.pop(0))]
        return found

    def skip_after(self, spike: LossSpike) -> tuple[int, int]:
        """Leave out a stretch from the step before a spike on; return its first and last step.

        The step before, since a loss that jumps may be the work of the update before it.
        """
        first = spike.step - 1
        stretch = (first, first + STRETCH * 2**self.rollbacks - 1)
        self.skipped_steps.append(stretch)
        self.rollbacks += 1
        return stretch

    def filter_batch(self, batch: Batch, step: int) -> Batch:
        """Return the batch of a step, or an empty one where the step is left out."""
        if not any(first <= step <= last for first, last in self.skipped_steps):
            return batch
        return batch._replace(micro_batches=(), items=0.0, samples=0, after_spike=True)


def _spread(ordered: list[float]) -> tuple[float, float]:
    """Return the median and the scale of sorted losses: what one standard deviation above it is.

    The larger of what the middle half and what the upper tail says, since losses of a model that
    has nearly learnt all have a long tail upwards.
    """
    median = statistics.median(ordered)
    deviation = statistics.median(abs(loss - median) for loss in ordered)
    upper = ordered[len(ordered) * 9 // 10] - median
    return median, max(NORMAL * deviation, upper / UPPER, FLOOR * abs(median))
