"""Several datasets, each by its share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder, order_generator


@dataclass(frozen=True, eq=False)
class MixtureOrder:
    """Each epoch the same number of samples of each dataset, in a shuffled succession.

    A dataset goes through passes of its own, each in a new order, and an epoch goes on where the
    one before left it. Since the numbers are the same in every epoch, that place is a product.

    Attributes:
        shares: of each dataset, by name.
        draws: positions of an epoch; None is as many as there are samples in all.
        sizes: how many samples each dataset has.
        counts: how many of each come in an epoch.
    """

    shares: Mapping[str, float]
    draws: int | None
    sizes: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    name: str = "mixed"

    def bind(self, samples: DatasetView) -> "MixtureOrder":
        """Return the order over these datasets.

        Raises:
            DataError: other datasets than shares, or a share that is less than a sample.
        """
        sizes = samples.parts
        if set(sizes) != set(self.shares):
            there = f"the datasets {sorted(sizes)}" if sizes else "one dataset"
            raise DataError(
                f"mixed() has shares of {sorted(self.shares)}, and train is {there}. Give "
                "train={'a': ..., 'b': ...} and mixed({'a': 0.7, 'b': 0.3}) with the same names."
            )
        counts = split_by_share(self.shares, samples.count if self.draws is None else self.draws)
        none = [name for name, count in counts.items() if not count]
        if none:
            raise DataError(
                f"A share of {self.shares[none[0]]:g} for {none[0]!r} is less than one sample in "
                f"an epoch of {sum(counts.values())}. Say a larger share, or mixed(..., samples=) "
                "for longer epochs."
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
        # Each position is given a dataset, which gives its next sample.
        place = torch.randperm(len(self), generator=order_generator(seed, epoch))
        owner = torch.cat([torch.full((len(p),), i) for i, p in enumerate(parts)])[place]
        rows = torch.empty(len(self), dtype=torch.int64)
        for index, part in enumerate(parts):
            rows[owner == index] = part
        return rows

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Say how many samples of each dataset come in an epoch."""
        each = [f"{self.counts[n]} of {n} ({self.sizes[n]} samples)" for n in self.counts]
        return f"an epoch has {', '.join(each)}"


def _passes(name: str, size: int, seed: int, first: int, end: int) -> Tensor:
    """Return places `first` to `end` in a dataset's passes, which follow one another."""
    passes = range(first // size, (end - 1) // size + 1)
    rows = [torch.randperm(size, generator=order_generator(seed, name, each)) for each in passes]
    skipped = first - passes.start * size
    return torch.cat(rows)[skipped : skipped + end - first]


def split_by_share(shares: Mapping[str, float], samples: int) -> dict[str, int]:
    """Cut a number of samples by share into whole numbers, by the largest remainders."""
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
    bad = [name for name, share in shares.items() if not (share > 0 and math.isfinite(share))]
    if bad:
        raise DataError(
            f"The share of {bad[0]!r} is {shares[bad[0]]}. Give mixed() shares above 0, or leave "
            "the dataset out."
        )
    if not math.isclose(total, 1.0, rel_tol=1e-6):
        ones = ", ".join(f"{name!r}: {share / total:.4g}" for name, share in shares.items())
        raise DataError(f"The shares add up to {total:g}, not 1. Did you mean mixed({{{ones}}})?")
    if samples is not None and samples < 1:
        raise DataError(f"mixed(samples={samples}) draws nothing. Say at least 1.")
    return MixtureOrder({name: share / total for name, share in shares.items()}, samples)
