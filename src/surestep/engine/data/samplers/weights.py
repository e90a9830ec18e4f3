"""Samples drawn by weight, or so that each class comes equally often."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder, order_generator

MULTINOMIAL_LIMIT = 2**24  # torch.multinomial takes no more categories


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples drawn by weight.

    Attributes:
        weights: of each sample, (samples,) float64.
        draws: positions of an epoch; None is as many as there are samples.
        replacement: whether a sample may come more than once in an epoch.
        name: what the Plan calls it.
        note: what is told beside the number of draws.
    """

    weights: Tensor
    draws: int | None
    replacement: bool = True
    name: str = "weighted"
    note: str = ""

    def bind(self, samples: DatasetView) -> "Weighted":
        """Return the order over this data.

        Raises:
            DataError: there are more or fewer weights than samples.
        """
        if len(self.weights) != samples.count:
            raise DataError(
                f"There are {len(self.weights)} weights and {samples.count} training samples. "
                "Give weighted() one weight for each sample."
            )
        draws = samples.count if self.draws is None else self.draws
        able = int((self.weights > 0).sum())
        if not self.replacement and draws > able:
            raise DataError(
                f"{draws} samples cannot be drawn without replacement from the {able} whose weight "
                f"is not 0. Say weighted(weights, samples={able}, replacement=False), or leave "
                "replacement out."
            )
        return replace(self, draws=draws)

    def __len__(self) -> int:
        assert self.draws is not None
        return self.draws

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Draw an epoch, as torch.utils.data.WeightedRandomSampler does under this generator."""
        generator = order_generator(seed, epoch)
        if len(self.weights) <= MULTINOMIAL_LIMIT:
            return torch.multinomial(self.weights, len(self), self.replacement, generator=generator)
        return _draw_many(self.weights, len(self), self.replacement, generator)

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Say how many are drawn from how many."""
        how = "with" if self.replacement else "without"
        drawn = f"{len(self)} drawn {how} replacement from {len(self.weights)} samples"
        return f"{drawn}; {self.note}" if self.note else drawn


def _draw_many(
    weights: Tensor, draws: int, replacement: bool, generator: torch.Generator
) -> Tensor:
    """Draw from more samples than torch.multinomial takes.

    Without replacement: the largest of log(u) / weight, which draws one after the other.
    Source: Efraimidis and Spirakis 2006, https://doi.org/10.1016/j.ipl.2005.11.003
    """
    if not replacement:
        drawn = torch.rand(len(weights), dtype=torch.float64, generator=generator)
        return (drawn.log() / weights).topk(draws).indices
    sums = weights.cumsum(0)
    drawn = torch.rand(draws, dtype=torch.float64, generator=generator) * sums[-1]
    return torch.searchsorted(sums, drawn, right=True).clamp_(max=len(weights) - 1)


@dataclass(frozen=True, eq=False)
class Balanced:
    """Samples drawn so that each class comes equally often in expectation."""

    labels: Tensor | None
    draws: int | None
    classes: int | None
    name: str = "balanced"

    def bind(self, samples: DatasetView) -> SampleOrder:
        """Return the weighted order over this data: each sample weighs one over its class's size.

        Raises:
            DataError: there is not one class index for each sample, or a class has no sample.
        """
        labels = samples.targets() if self.labels is None else self.labels
        if labels is None:
            raise DataError(
                "balanced() finds no targets without loading every sample. Give it the classes: "
                "balanced(labels), one class index for each sample."
            )
        if labels.dim() != 1 or labels.is_floating_point() or len(labels) != samples.count:
            raise DataError(
                f"balanced() takes one class index for each of the {samples.count} samples, and "
                f"got {labels.dtype} of shape {tuple(labels.shape)}. Give balanced(labels), or "
                "weighted(weights)."
            )
        return self._weigh(labels.long())

    def _weigh(self, labels: Tensor) -> Weighted:
        if int(labels.min()) < 0:
            raise DataError(
                f"balanced() takes class indices from 0 on, and the smallest label is "
                f"{int(labels.min())}. Give balanced(labels) without ignored ones."
            )
        sizes = torch.bincount(labels, minlength=self.classes or 0)
        if self.classes is not None and (len(sizes) > self.classes or not bool(sizes.all())):
            empty = (sizes == 0).nonzero().flatten().tolist()
            what = f"has no sample of class {empty[0]}" if empty else f"goes to {len(sizes) - 1}"
            raise DataError(
                f"balanced(classes={self.classes}) takes samples of each class from 0 to "
                f"{self.classes - 1}, and the data {what}. Look at the labels, or leave classes "
                "out."
            )
        there = sizes[sizes > 0]
        note = f"each of {len(there)} classes equally often, of {there.min()} to {there.max()}"
        draws = len(labels) if self.draws is None else self.draws
        return Weighted(1 / sizes.double()[labels], draws, name=self.name, note=note)

    def __len__(self) -> int:
        raise AssertionError("balanced() is not over any data yet")

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Fail: over() gives the order that is drawn."""
        raise AssertionError("balanced() is not over any data yet")

    def explain(self, cut: BatchLayout, seed: int) -> str:
        """Fail: over() gives the order that is drawn."""
        raise AssertionError("balanced() is not over any data yet")


def weighted(
    weights: Sequence[float] | Tensor, samples: int | None = None, *, replacement: bool = True
) -> SampleOrder:
    """Return a sampler that draws samples by weight: P(sample) = weight / sum of weights.

    Args:
        weights: one non-negative weight per sample; they need not add up to 1.
        samples: number of samples to draw per epoch; the default is the size of the dataset.
        replacement: whether a sample may be drawn more than once per epoch.

    Raises:
        DataError: a weight is negative, NaN or infinite, or all are zero.
    """
    found = torch.as_tensor(weights, dtype=torch.float64).cpu()
    if found.dim() != 1 or not len(found):
        raise DataError(
            f"weights have shape {tuple(found.shape)}. Give weighted() one weight for each sample."
        )
    bad = (~torch.isfinite(found) | (found < 0)).nonzero().flatten()
    if len(bad):
        raise DataError(
            f"The weight of sample {int(bad[0])} is {float(found[bad[0]])}. Give weighted() finite "
            "weights of at least 0."
        )
    if not bool(found.any()):
        raise DataError("All weights are 0, so there is nothing to draw. Give some samples more.")
    return Weighted(found, _positive(samples, "weighted"), replacement)


def balanced(
    labels: Sequence[int] | Tensor | None = None,
    samples: int | None = None,
    *,
    classes: int | None = None,
) -> SampleOrder:
    """Return a sampler that draws all classes equally often in expectation.

    Args:
        labels: the class of each sample; the default is the data's targets, if they are in memory.
        samples: number of samples to draw per epoch; the default is the size of the dataset.
        classes: number of classes; if it is set, a class without samples is an error.
    """
    found = None if labels is None else torch.as_tensor(labels).cpu()
    return Balanced(found, _positive(samples, "balanced"), classes)


def _positive(samples: int | None, name: str) -> int | None:
    if samples is not None and samples < 1:
        raise DataError(f"{name}(samples={samples}) draws nothing. Say at least 1.")
    return samples
