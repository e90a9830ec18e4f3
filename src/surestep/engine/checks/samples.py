"""Some samples of a batch or of a model's outputs, and how a batch is split into parts."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.checks.vary import vary_outputs

TRIALS = 8  # with varied outputs, half of them down to single samples
_SINGLES = 8  # the most samples that are split into single ones
_TRIAL_SIZE = 2**21  # numbers that one trial varies
_LARGEST_TRIAL = 2**26  # numbers of two samples above which none are varied, to save memory


class Split(NamedTuple):
    """Some samples, and where they are split into parts.

    Attributes:
        rows: the samples.
        bounds: row numbers at which they are split, counted from the first of them.
        seed: of the variation; None keeps what the model returns.
    """

    rows: range
    bounds: list[int]
    seed: int | None

    def parts(self) -> list[range]:
        """Return the samples of each part, counted from the first of them all."""
        return [range(*entry) for entry in itertools.pairwise((0, *self.bounds, len(self.rows)))]

    def take(self, outputs: Any) -> Any:
        """Return copies of the outputs of these samples, varied if there is a seed."""
        taken = take_samples(outputs, self.rows)
        if self.seed is None:
            return taken
        return vary_outputs(taken, torch.Generator().manual_seed(self.seed))


def draw_splits(samples: int, numbers: int, most: int | None = None) -> Iterator[Split]:
    """Yield the splits of a batch: the first is not varied, the others are.

    Parts are uneven, because a mean of means is right for even ones, and go down to single samples.

    Args:
        samples: in the batch.
        numbers: that the model returns for it.
        most: samples of a varied split; None is all that a trial can vary.
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
        # Or a single sample, less than half of the others, and the rest.
        bounds = list(range(1, count)) if single else sorted({1, 1 + draw(max(1, count // 2))})
        yield Split(range(start, start + count), bounds, seed)


def is_per_sample(outputs: Any, samples: int) -> bool:
    """Return whether the first dimension of every output is the samples."""
    tensors = flatten_tensors(outputs)
    if not tensors or has_opaque(outputs):
        return False
    return all(tensor.dim() and len(tensor) == samples for tensor in tensors)


def take_samples(outputs: Any, rows: range) -> Any:
    """Return copies of the outputs of some samples."""
    return map_tensors(outputs, lambda tensor: tensor[rows.start : rows.stop].clone())


def has_samples(batch: Any, samples: int) -> bool:
    """Return whether a batch has something with one entry per sample, and nothing opaque."""
    if has_opaque(batch):
        return False
    tensors = flatten_tensors(batch)
    has_rows = any(tensor.dim() and len(tensor) == samples for tensor in tensors)
    return has_rows or _is_list_of_samples(batch, samples)


def select_samples(value: Any, rows: range, samples: int) -> Any:
    """Return copies of some samples of a batch; what has no entry per sample is kept.

    Args:
        value: a collated batch: tensors whose first dimension is the samples, or lists with an
            element for each sample.
        rows: consecutive samples.
        samples: samples in the batch.
    """
    if _is_list_of_samples(value, samples):
        return type(value)(value[rows.start : rows.stop])
    if type(value) is dict:
        return {key: select_samples(entry, rows, samples) for key, entry in value.items()}
    if type(value) in (tuple, list):
        return type(value)(select_samples(entry, rows, samples) for entry in value)

    def select(tensor: Tensor) -> Tensor:
        per_sample = tensor.dim() > 0 and len(tensor) == samples
        return tensor[rows.start : rows.stop].clone() if per_sample else tensor

    return map_tensors(value, select)


def _is_list_of_samples(value: Any, samples: int) -> bool:
    """Distinguish a list of samples from a tuple of full tensors, such as (x, y)."""
    if not isinstance(value, (list, tuple)) or len(value) != samples or hasattr(value, "_fields"):
        return False
    return not any(tensor.dim() and len(tensor) == samples for tensor in flatten_tensors(value))


def has_opaque(value: Any) -> bool:
    """Return whether nested values have an object in which no tensors can be found."""
    if value is None or isinstance(value, (Tensor, str, bytes, bool, int, float, complex)):
        return False
    if isinstance(value, Mapping):
        return any(map(has_opaque, value.values()))
    if isinstance(value, Sequence):
        return any(map(has_opaque, value))
    if is_dataclass(value) and not isinstance(value, type):
        return any(map(has_opaque, vars(value).values()))
    return True
