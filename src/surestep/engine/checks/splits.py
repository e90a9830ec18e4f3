"""Which samples of the first batch are compared with which parts of them.

Parts are uneven, because a mean of means is right for even ones, and go down to single samples.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from surestep.engine.checks.perturb import perturb
from surestep.engine.checks.samples import Layout, take_samples

TRIALS = 8  # with varied outputs, half of them down to single samples
_SINGLES = 8  # the most samples that are cut into single ones
_TRIAL_SIZE = 2**21  # numbers that one trial varies
_LARGEST_TRIAL = 2**26  # numbers of two samples above which none are varied, to spare memory


class Split(NamedTuple):
    """Some samples, and where they are cut into parts.

    Attributes:
        rows: the samples.
        cuts: where they are cut, counted from the first of them.
        seed: what the outputs are varied by; None for the outputs of the model.
    """

    rows: range
    cuts: list[int]
    seed: int | None

    def parts(self) -> list[range]:
        """Return the samples of each part, counted from the first of them all."""
        return [range(*each) for each in itertools.pairwise((0, *self.cuts, len(self.rows)))]


def draw_splits(samples: int, numbers: int, most: int | None = None) -> Iterator[Split]:
    """Yield the splits of a batch: one with the model's outputs, the others with varied ones.

    Args:
        samples: in the batch.
        numbers: that the model returns for it.
        most: samples of a split with varied outputs; None is all that a trial can vary.
    """
    yield Split(range(samples), [max(1, samples // 3)], None)
    size = max(1, numbers // samples)
    if 2 * size > _LARGEST_TRIAL:
        return
    for seed in range(TRIALS):
        generator = torch.Generator().manual_seed(seed)

        def draw(below: int, generator: torch.Generator = generator) -> int:
            return int(torch.randint(below, (), generator=generator))

        single = bool(seed % 2)
        allowed = samples if most is None else min(samples, most)
        count = min(allowed, max(3, _TRIAL_SIZE // size), _SINGLES if single else allowed)
        start = draw(samples - count + 1)
        # Else a single sample, less than half of the others, and the rest.
        cuts = list(range(1, count)) if single else sorted({1, 1 + draw(max(1, count // 2))})
        yield Split(range(start, start + count), cuts, seed)


def take_split(outputs: Any, layout: Layout, split: Split) -> Any:
    """Return copies of the outputs of the samples of a split, varied if it says so."""
    taken = take_samples(outputs, layout, split.rows)
    if split.seed is None:
        return taken
    return perturb(taken, layout, torch.Generator().manual_seed(split.seed))
