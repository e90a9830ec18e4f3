"""Samples drawn by weight, or so that all classes are equally frequent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView, SampleOrder, order_generator


@dataclass(frozen=True, eq=False)
class Weighted:
    """Samples drawn by weight.

    `weights` is of each sample, (samples,) float64, or a function that returns them for the data,
    with a note for the Plan.
    """

    weights: Tensor | Callable[[DatasetView], tuple[Tensor, str]]
    draws: int | None  # positions of an epoch; None is the number of samples
    replacement: bool = True
    name: str = "weighted"
    note: str = ""

    def bind(self, samples: DatasetView) -> "Weighted":
        """Return the order over this data."""
        weights, note = self.weights, self.note
        if not isinstance(weights, Tensor):
            weights, note = weights(samples)
        if len(weights) != samples.count:
            raise DataError(
                f"There are {len(weights)} weights and {samples.count} training samples. Give "
                "weighted() one weight for each sample."
            )
        draws = samples.count if self.draws is None else self.draws
        positive = int((weights > 0).sum())
        if not self.replacement and draws > positive:
            raise DataError(
                f"{draws} samples cannot be drawn without replacement from the {positive} whose "
                f"weight is not 0. Use weighted(weights, samples={positive}, replacement=False), "
                "or leave replacement out."
            )
        return replace(self, weights=weights, draws=draws, note=note)

    def __len__(self) -> int:
        assert self.draws is not None, "bind() is called first"
        return self.draws

    def indices(self, seed: int, epoch: int, batch_size: int) -> Tensor:
        """Draw an epoch, as torch.utils.data.WeightedRandomSampler does under this generator."""
        assert isinstance(self.weights, Tensor), "bind() is called first"
        generator = order_generator(seed, epoch)
        return torch.multinomial(self.weights, len(self), self.replacement, generator=generator)

    def explain(self, layout: BatchLayout, seed: int) -> str:
        """Describe how many samples are drawn from how many."""
        assert isinstance(self.weights, Tensor), "bind() is called first"
        how = "with" if self.replacement else "without"
        drawn = f"{len(self)} drawn {how} replacement from {len(self.weights)} samples"
        return f"{drawn}; {self.note}" if self.note else drawn


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
    are_valid = bool((torch.isfinite(found) & (found >= 0)).all())
    if found.dim() != 1 or not are_valid or not bool(found.any()):
        raise DataError(
            f"weighted() got weights of shape {tuple(found.shape)}, such as "
            f"{found.flatten()[:8].tolist()}. Give one finite weight of at least 0 for each "
            "sample, and some above 0."
        )
    return Weighted(found, _check_draws(samples, "weighted"), replacement)


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
    given = None if labels is None else torch.as_tensor(labels).cpu()

    def weigh(view: DatasetView) -> tuple[Tensor, str]:
        return _class_weights(view.targets() if given is None else given, view.count, classes)

    return Weighted(weigh, _check_draws(samples, "balanced"), name="balanced")


def _class_weights(labels: Tensor | None, samples: int, classes: int | None) -> tuple[Tensor, str]:
    """Return one over the size of each sample's class, and a note."""
    if labels is None:
        raise DataError(
            "balanced() finds no targets without loading every sample. Give it the classes: "
            "balanced(labels), one class index for each sample."
        )
    is_index = labels.dim() == 1 and not labels.is_floating_point() and len(labels) == samples
    if not is_index or int(labels.min()) < 0:
        raise DataError(
            f"balanced() takes one class index from 0 on for each of the {samples} samples, and "
            f"got {labels.dtype} of shape {tuple(labels.shape)}, such as "
            f"{labels.flatten()[:8].tolist()}. Give balanced(labels) without ignored ones, or "
            "weighted(weights)."
        )
    labels = labels.long()
    sizes = torch.bincount(labels, minlength=classes or 0)
    if classes is not None and (len(sizes) > classes or not bool(sizes.all())):
        empty = (sizes == 0).nonzero().flatten().tolist()
        what = f"has no sample of class {empty[0]}" if empty else f"goes to {len(sizes) - 1}"
        raise DataError(
            f"balanced(classes={classes}) takes samples of each class from 0 to {classes - 1}, and "
            f"the data {what}. Check the labels, or leave classes out."
        )
    there = sizes[sizes > 0]
    note = f"each of {len(there)} classes equally often, of {there.min()} to {there.max()}"
    return 1 / sizes.double()[labels], note


def _check_draws(samples: int | None, name: str) -> int | None:
    if samples is not None and samples < 1:
        raise DataError(f"{name}(samples={samples}) draws nothing. Use at least 1.")
    return samples
