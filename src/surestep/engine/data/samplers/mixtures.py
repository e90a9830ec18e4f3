"""Several datasets, each with its share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.plan.batching import (
    BatchLayout,
    DatasetView,
    SampleOrder,
    check_order_fits,
    order_generator,
)
from surestep.engine.rng import derive_seed


@dataclass(frozen=True, eq=False)
class MixtureOrder:
    """Each epoch the same number of samples of each dataset, in random order.

    Each dataset is read in passes, each in a new order; an epoch continues the pass of the one
    before. The counts are the same in every epoch, so that position is a product.
    """

    shares: Mapping[str, float]
    draws: int | None  # positions of an epoch; None is the number of all samples
    sizes: Mapping[str, int] = field(default_factory=dict)  # samples of each dataset
    counts: Mapping[str, int] = field(default_factory=dict)  # of each dataset in an epoch
    name: str = "mixed"

    def bind(self, samples: DatasetView) -> "MixtureOrder":
        """Return the order over these datasets."""
        sizes = samples.parts
        if set(sizes) != set(self.shares):
            there = f"the datasets {sorted(sizes)}" if sizes else "one dataset"
            raise DataError(
                f"mixture() has shares of {sorted(self.shares)}, and train is {there}. Give "
                "train={'a': ..., 'b': ...} and mixture({'a': 0.7, 'b': 0.3}) with the same names."
            )
        counts = split_by_share(self.shares, samples.count if self.draws is None else self.draws)
        none = [name for name, count in counts.items() if not count]
        if none:
            raise DataError(
                f"A share of {self.shares[none[0]]:g} for {none[0]!r} is less than one sample in "
                f"an epoch of {sum(counts.values())}. Use a larger share, or "
                "mixture(..., samples=) for longer epochs."
            )
        check_order_fits(
            sum(counts.values()) + max(sizes.values()),
            "Draw the samples of an epoch from all datasets put one after the other: "
            "Task(sampler=surestep.samplers.custom(lambda seed, epoch: "
            f"torch.randint({samples.count}, (100_000,)))).",
        )
        return replace(self, sizes=dict(sizes), counts=counts)

    def __len__(self) -> int:
        return sum(self.counts.values())

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Return the index of each position's sample in all datasets put one after the other."""
        parts, offset = [], 0
        for name, size in self.sizes.items():
            first = epoch * self.counts[name]
            parts.append(offset + _passes(name, size, seed, first, first + self.counts[name]))
            offset += size
        # Each position belongs to a dataset, which gives its next sample.
        shuffled = torch.randperm(len(self), generator=order_generator(seed, epoch))
        owner = torch.cat([torch.full((len(p),), i) for i, p in enumerate(parts)])[shuffled]
        rows = torch.empty(len(self), dtype=torch.int64)
        for index, part in enumerate(parts):
            rows[owner == index] = part
        return rows

    def explain(self, layout: BatchLayout, seed: int) -> str:
        """Describe how many samples of each dataset an epoch has."""
        counts = [f"{self.counts[n]} of {n} ({self.sizes[n]} samples)" for n in self.counts]
        return f"an epoch has {', '.join(counts)}"


def _passes(name: str, size: int, seed: int, first: int, end: int) -> Tensor:
    """Return positions `first` to `end` of a dataset's passes, one after the other."""
    passes = range(first // size, (end - 1) // size + 1)
    rows = [
        torch.randperm(
            size, generator=torch.Generator().manual_seed(derive_seed("mixture", seed, n, name))
        )
        for n in passes
    ]
    skipped = first - passes.start * size
    return torch.cat(rows)[skipped : skipped + end - first]


def split_by_share(shares: Mapping[str, float], samples: int) -> dict[str, int]:
    """Split a number of samples by share into integers, by the largest remainders."""
    whole = {name: math.floor(share * samples) for name, share in shares.items()}
    by_rest = sorted(shares, key=lambda name: whole[name] - shares[name] * samples)
    for name in by_rest[: samples - sum(whole.values())]:
        whole[name] += 1
    return whole


def mixture(shares: Mapping[str, float], samples: int | None = None) -> SampleOrder:
    """Return a sampler over several datasets, each with its share of every epoch.

    Args:
        shares: by the names in `train={"name": dataset, ...}`; they add up to 1.
        samples: number of samples per epoch; the default is the size of all datasets together.

    Raises:
        DataError: a share is not positive, or the shares do not add up to 1.
    """
    total = math.fsum(shares.values())
    if not math.isclose(total, 1.0, rel_tol=1e-6) or min(shares.values()) <= 0:
        raise DataError(
            f"mixture() got the shares {dict(shares)}, which add up to {total:g}. Give shares "
            "above 0 that add up to 1; to leave a dataset out, do not name it."
        )
    if samples is not None and samples < 1:
        raise DataError(f"mixture(samples={samples}) draws nothing. Use at least 1.")
    return MixtureOrder({name: share / total for name, share in shares.items()}, samples)
