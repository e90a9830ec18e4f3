"""Some samples of a batch or of a model's outputs, how a batch is split, and other outputs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.losses.adapt import Loss
from surestep.engine.rng import derive_seed

_LARGEST_TRIAL = 2**26  # numbers of two samples above which none are varied, to save memory


class Partition(NamedTuple):
    """Some samples, and where they are split into parts.

    Attributes:
        rows: the samples: a range, or a list.
        bounds: row numbers at which they are split, counted from the first of them.
        seed: of the variation; None keeps what the model returns.
    """

    rows: Sequence[int]
    bounds: list[int]
    seed: int | None

    def all_rows(self) -> list[Sequence[int]]:
        """Return the samples, and those of each part."""
        return [self.rows, *(self.rows[part.start : part.stop] for part in self.parts())]

    def parts(self) -> list[range]:
        """Return the samples of each part, counted from the first of all."""
        return [range(*entry) for entry in itertools.pairwise((0, *self.bounds, len(self.rows)))]

    def take(self, outputs: Any) -> Any:
        """Return copies of the outputs of these samples, varied if there is a seed."""
        taken = take_samples(outputs, self.rows)
        if self.seed is None:
            return taken
        return vary_outputs(taken, torch.Generator().manual_seed(derive_seed("check", self.seed)))


def split_in_two(samples: int) -> Partition:
    """Return a batch in two uneven parts, because a mean of means is right for even ones."""
    return Partition(range(samples), [max(1, samples // 3)], None)


def split_varied(
    samples: int, parts: Sequence[int], rows: Sequence[int] | None = None
) -> Partition:
    """Return the first samples, or these `rows`, in parts of these sizes, to be varied."""
    chosen = range(min(samples, sum(parts))) if rows is None else rows
    return Partition(chosen, [end for end in itertools.accumulate(parts) if end < len(chosen)], 0)


def can_be_varied(outputs: Any, samples: int) -> bool:
    """Return whether outputs are small enough to vary those of a few samples."""
    numbers = sum(tensor.numel() for tensor in flatten_tensors(outputs))
    return 2 * max(1, numbers // samples) <= _LARGEST_TRIAL


def different_samples(targets: Any, samples: int, most: int) -> list[int]:
    """Return samples whose targets differ: in classes, in how many are padding or positive.

    The first two have the smallest and the largest targets.
    """
    places = [round(step * (samples - 1) / (most - 1)) for step in (0, *range(most - 1, 0, -1))]
    order: Sequence[int] = range(samples)
    if is_list_of_samples(targets, samples):
        sizes_of = [sum(tensor.numel() for tensor in flatten_tensors(one)) for one in targets]
        order = sorted(range(samples), key=sizes_of.__getitem__)
        targets = ()
    for tensor in flatten_tensors(targets):
        if tensor.dim() and len(tensor) == samples and tensor.numel() and not tensor.is_complex():
            rows = tensor.reshape(samples, -1).float().cpu()
            sizes = rows.sum(1)
            if bool((sizes == sizes[0]).all()):  # as those of one-hot targets
                sizes = rows @ torch.arange(1.0, rows.shape[1] + 1)
            order = sizes.argsort(stable=True).tolist()
            break
    return [order[place] for place in dict.fromkeys(places)]


def is_per_sample(outputs: Any, samples: int) -> bool:
    """Return whether the first dimension of every output is the samples."""
    tensors = flatten_tensors(outputs)
    if not tensors or has_opaque(outputs):
        return False
    return all(tensor.dim() and len(tensor) == samples for tensor in tensors)


def take_samples(outputs: Any, rows: Sequence[int]) -> Any:
    """Return copies of the outputs of some samples."""
    return map_tensors(outputs, lambda tensor: take_rows(tensor, rows))


def take_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Return a copy of some rows of a tensor."""
    if isinstance(rows, range):
        return tensor[rows.start : rows.stop].clone()
    return tensor[torch.tensor(rows, device=tensor.device)]


def can_be_split(batch: Any, samples: int) -> bool:
    """Return whether all of a batch has one entry per sample, or is a number or text for all."""
    if has_opaque(batch):
        return False
    if is_list_of_samples(batch, samples):
        return True
    return all(len(tensor) == samples for tensor in flatten_tensors(batch) if tensor.dim())


def has_samples(batch: Any, samples: int) -> bool:
    """Return whether a batch has something with one entry per sample, and nothing opaque."""
    if has_opaque(batch):
        return False
    tensors = flatten_tensors(batch)
    has_rows = any(tensor.dim() and len(tensor) == samples for tensor in tensors)
    return has_rows or is_list_of_samples(batch, samples)


def select_samples(value: Any, rows: Sequence[int], samples: int) -> Any:
    """Return copies of some samples of a collated batch; what has no entry per sample is kept."""
    if is_list_of_samples(value, samples):
        return type(value)(value[row] for row in rows)
    if type(value) is dict:
        return {key: select_samples(entry, rows, samples) for key, entry in value.items()}
    if type(value) in (tuple, list):
        return type(value)(select_samples(entry, rows, samples) for entry in value)

    def select(tensor: Tensor) -> Tensor:
        per_sample = tensor.dim() > 0 and len(tensor) == samples
        return take_rows(tensor, rows) if per_sample else tensor

    return map_tensors(value, select)


def is_list_of_samples(value: Any, samples: int) -> bool:
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


def draw_classes(targets: Any, outputs: Any, loss: Loss) -> Tensor | None:
    """Return targets of which each is one of the classes at random; None for other targets.

    A batch may have no sample of a rare class, or samples of one class alone. Then a recall, or a
    mean over class weights, is the same as a mean over samples.
    """
    if not isinstance(targets, Tensor) or targets.is_complex():
        return None
    generator = torch.Generator().manual_seed(derive_seed("check", 0))
    dim = loss.find_class_dim(outputs)
    if dim is None or targets.is_floating_point():
        if not bool(((targets == 0) | (targets == 1)).all()):
            return None
        if (dim := _dim_of_choice(targets)) is not None:
            order = torch.rand(targets.shape, generator=generator).argsort(dim)
            return targets.gather(dim, order.to(targets.device))
        return torch.randint(2, targets.shape, generator=generator).to(targets)
    is_class = (targets >= 0) & (targets < outputs.shape[dim])
    classes = torch.arange(outputs.shape[dim])
    if targets.device.type != "cpu":
        # A user's table may have fewer rows, and an index out of range ends the process of a GPU.
        classes = targets[is_class].unique().cpu()
        if len(classes) < 2:
            return None
    drawn = classes[torch.randint(len(classes), targets.shape, generator=generator)]
    return torch.where(is_class, drawn.to(targets), targets)


def predicted_classes(targets: Any, outputs: Any, first: int) -> Iterator[Tensor]:
    """Yield targets that the outputs of the first samples predict, and those of no other sample.

    Only then is it seen that a metric counts the batches in which all is predicted.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return
    shape, pairs = outputs.shape, list[tuple[Tensor, Tensor]]()
    is_class = torch.ones_like(targets, dtype=torch.bool)
    if outputs.shape == targets.shape:
        is_binary = bool(((targets == 0) | (targets == 1)).all()) and not outputs.is_complex()
        if is_binary and _dim_of_choice(targets) is None:
            are_shares = bool(((outputs >= 0) & (outputs <= 1)).all())
            predicted = outputs > (0.5 if are_shares else 0)
            pairs = [(predicted, ~predicted)]
    elif not targets.is_floating_point():
        dims = [
            dim for dim in range(1, len(shape)) if shape[:dim] + shape[dim + 1 :] == targets.shape
        ]
        classes = [(outputs.argmax(dim), shape[dim]) for dim in dims if shape[dim] > 1]
        pairs = [(predicted, (predicted + 1) % count) for predicted, count in classes]
        is_class = targets >= 0
    for predicted, other in pairs:
        drawn = torch.cat([predicted[:first], other[first:]]).to(targets.dtype)
        if targets.device.type == "cpu" or bool(torch.isin(drawn, targets[is_class]).all()):
            yield torch.where(is_class, drawn, targets)


def _dim_of_choice(targets: Tensor) -> int | None:
    """Return the dimension along which targets of 0 and 1 have equally many 1s, as one-hot ones do.

    A function may rely on their number. None if they are all 0 or all 1: these are labels.
    """
    for dim in range(1, targets.dim()):
        counts = targets.count_nonzero(dim)
        if counts.numel() and bool((counts == counts.flatten()[0]).all()):
            return dim if 0 < int(counts.flatten()[0]) < targets.shape[dim] else None
    return None


def vary_outputs(outputs: Any, generator: torch.Generator) -> Any:
    """Return outputs with every floating point number varied, some samples more than others.

    A new model returns nearly the same for every sample, and then a mean over tokens equals a mean
    over samples. Probabilities stay probabilities, and what has one sign keeps it: a loss may be
    defined only there.
    """

    def vary(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
        sizes = [len(tensor)] + [1] * (tensor.dim() - 1)
        amplitude = torch.rand(sizes, generator=generator)
        dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
        values = tensor.detach().to(dtype)
        return _vary(values, noise.to(values), amplitude.to(values)).to(tensor.dtype)

    return map_tensors(outputs, vary)


def _vary(values: Tensor, noise: Tensor, amplitude: Tensor) -> Tensor:
    """Vary within the range of the values, with normal noise and an amplitude for each sample."""
    low, high = float(values.min()), float(values.max())
    if low == high == 0:
        return noise.abs().clamp(max=4) / 4 * amplitude
    if low >= 0 and high <= 1:
        dim = _dim_of_sum(values)
        other = noise.sigmoid() if dim is None else (2 * noise).softmax(dim)
        return values + amplitude * (other - values)
    if high <= 0 and (dim := _dim_of_sum(values.exp())) is not None:
        return (values + 3 * amplitude * noise).log_softmax(dim)
    if high <= 0 or low >= 0:
        return values * (amplitude * noise).exp()
    scale = max(float(values.square().mean().sqrt()), 1.0)
    return values + 2 * scale * amplitude * noise


def _dim_of_sum(values: Tensor) -> int | None:
    """Return the dimension along which values sum to 1, the last of several."""
    for dim in reversed(range(values.dim())):
        sums = values.sum(dim)
        if values.shape[dim] > 1 and bool(((sums - 1).abs() < 1e-2).all()):
            return dim
    return None
