"""Counts of predictions: confusions, calibration, labels, residuals and a sample of points.

Each is a sum of integers, or the first by an order of samples, so that neither the batch size nor
the number of ranks changes it: `to_json()` of all ranks, merged by `merge()`, is that of one rank.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surestep.engine.evaluate.sample_predictions import Kind, Rows

CALIBRATION_BINS = 15
RESIDUAL_BINS = 64
POINTS = 500
MATRIX_CLASSES = 30  # of a matrix in the file: 900 counts
PAIRS = 50
LABELS = 50
_MOST_PAIRS = 100_000  # of different (target, prediction), in memory
_MOST_LABELS = 10_000
_ONE = 2**24  # of a confidence: float32 has no more digits
_SMALLEST, _LARGEST = -60, 100  # exponents of the width of a bin, and of a residual


class Positions(NamedTuple):
    """Where the samples of a micro-batch are in their set.

    Attributes:
        indices: of the samples; that of the first one for all if `by_row`.
        by_row: the rows are not the samples that were read one by one, such as those of a batch
            that the data has ready.
    """

    indices: NDArray[np.int64]
    by_row: bool

    def key(self, row: int) -> tuple[int, int]:
        """Return what identifies a sample: its index, and its row within that or -1."""
        return int(self.indices[row]), row if self.by_row else -1


class Statistic(Protocol):
    """What is counted over an evaluation."""

    def add(self, rows: Rows, at: Positions) -> None:
        """Add a micro-batch."""

    def to_json(self) -> Any:
        """Return what this rank counted."""

    def merge(self, ranks: Sequence[Any]) -> dict[str, Any]:
        """Return what the file has of it, from what each rank counted."""


class Confusion:
    """How often each class was predicted for each class."""

    def __init__(self) -> None:
        self._pairs: Counter[int] | None = Counter()  # by target * classes + prediction
        self._classes = self._not_finite = 0

    def add(self, rows: Rows, at: Positions) -> None:
        """Count the elements of a micro-batch."""
        self._classes = rows.classes
        known = rows.predictions >= 0
        self._not_finite += int((rows.kept & ~known).sum())
        if self._pairs is None:
            return
        chosen = rows.kept & known
        keys = rows.targets[chosen] * rows.classes + rows.predictions[chosen]
        found, counts = keys.unique(return_counts=True)
        for key, count in zip(found.tolist(), counts.tolist(), strict=True):
            self._pairs[key] += count
        if len(self._pairs) > _MOST_PAIRS:
            self._pairs = None

    def to_json(self) -> Any:
        """Return the counts by key, None if there were too many, and the number of classes."""
        pairs = None if self._pairs is None else list(self._pairs.items())
        return [pairs, self._classes, self._not_finite]

    def merge(self, ranks: Sequence[Any]) -> dict[str, Any]:
        """Return the matrix of few classes, and the most frequent confusions."""
        classes = max(classes for _, classes, _ in ranks)
        result: dict[str, Any] = {"classes": classes, "not_finite": sum(n for *_, n in ranks)}
        if any(pairs is None for pairs, *_ in ranks):
            return result | _too_many_pairs()
        total: Counter[int] = Counter()
        for pairs, *_ in ranks:
            total.update(dict(pairs))
        if len(total) > _MOST_PAIRS:
            return result | _too_many_pairs()
        by_pair = {divmod(key, max(1, classes)): count for key, count in total.items()}
        right = sum(n for (target, predicted), n in by_pair.items() if target == predicted)
        wrong = {pair: n for pair, n in by_pair.items() if pair[0] != pair[1]}
        most = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))[:PAIRS]
        result |= {
            "right": right,
            "wrong": sum(wrong.values()),
            "pairs": [[*pair, n] for pair, n in most],
            "pairs_left_out": len(wrong) - len(most),
        }
        if classes <= MATRIX_CLASSES:
            span = range(classes)
            result["matrix"] = [[by_pair.get((row, column), 0) for column in span] for row in span]
        return result


def _too_many_pairs() -> dict[str, Any]:
    return {"why": f"there are more than {_MOST_PAIRS:,} different pairs of target and prediction"}


class Calibration:
    """The confidence of predictions, and how many of them are right, in bins of confidence."""

    def __init__(self) -> None:
        self._sums = np.zeros((3, CALIBRATION_BINS), dtype=np.int64)  # count, right, confidence

    def add(self, rows: Rows, at: Positions) -> None:
        """Count the elements of a micro-batch; bin i is (i / bins, (i + 1) / bins]."""
        assert rows.confidence is not None
        chosen = rows.kept & (rows.predictions >= 0)
        confidence = (rows.confidence[chosen].clamp(0, 1) * _ONE).round().long()
        right = rows.predictions[chosen] == rows.targets[chosen]
        bins = (confidence * CALIBRATION_BINS - 1).div(_ONE, rounding_mode="floor").clamp_(min=0)
        # A sum by bins is not deterministic on every device; counts are.
        sums = [(confidence * (bins == index)).sum() for index in range(CALIBRATION_BINS)]
        counts = [torch.bincount(one, minlength=CALIBRATION_BINS) for one in (bins, bins[right])]
        self._sums += torch.stack([*counts, torch.stack(sums)]).cpu().numpy()

    def to_json(self) -> Any:
        """Return counts, right ones and the sums of confidence by bin."""
        return self._sums.tolist()

    def merge(self, ranks: Sequence[Any]) -> dict[str, Any]:
        """Return [count, mean confidence, accuracy] of each bin, and the calibration error.

        The expected calibration error is the mean of |accuracy - confidence| over the bins,
        weighted by their counts: Guo et al. 2017, https://arxiv.org/abs/1706.04599.
        """
        counts, right, sums = np.array(ranks, dtype=np.int64).sum(0).tolist()
        bins: list[list[float | None]] = [
            [n, c / _ONE / n, r / n] if n else [0, None, None]
            for n, r, c in zip(counts, right, sums, strict=True)
        ]
        gaps = (abs(r - c / _ONE) for r, c in zip(right, sums, strict=True))
        ece = math.fsum(gaps) / sum(counts) if sum(counts) else None
        return {"calibration": {"bins": bins, "ece": ece}}


class LabelCounts:
    """True and false positives and negatives of each label, if a sample has several."""

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] | None = None  # tp, fp, fn, tn; (4, labels)

    def add(self, rows: Rows, at: Positions) -> None:
        """Count the labels of a micro-batch."""
        if not rows.has_labels or rows.kept.shape[1] > _MOST_LABELS:
            return
        says, is_so = rows.predictions == 1, rows.targets == 1
        known = rows.kept & (rows.predictions >= 0)
        parts = (says & is_so, says & ~is_so, ~says & is_so, ~says & ~is_so)
        found = torch.stack([(part & known).sum(0) for part in parts]).cpu().numpy()
        self._counts = found if self._counts is None else self._counts + found

    def to_json(self) -> Any:
        """Return the counts by label; None if a sample has one label, or too many."""
        return None if self._counts is None else self._counts.tolist()

    def merge(self, ranks: Sequence[Any]) -> dict[str, Any]:
        """Return [label, tp, fp, fn, tn] of the labels with the most errors."""
        counted = [np.array(counts, dtype=np.int64) for counts in ranks if counts is not None]
        if not counted:
            return {}
        total = np.sum(counted, axis=0).T.tolist()
        rows = [[label, *counts] for label, counts in enumerate(total)]
        rows.sort(key=lambda row: (-row[2] - row[3], row[0]))
        return {"labels": rows[:LABELS], "labels_left_out": max(0, len(rows) - LABELS)}


class Residuals:
    """A histogram of predictions minus targets.

    The width of its bins is a power of two, and they start at multiples of it: the smallest width
    by which all residuals fit. Wider bins are sums of narrower ones, so it is found on the way.
    """

    def __init__(self) -> None:
        self._width, self._counts, self._left_out = _SMALLEST, Counter[int](), 0

    def add(self, rows: Rows, at: Positions) -> None:
        """Count the residuals of a micro-batch; those that are not finite are left out."""
        residuals = (rows.predictions - rows.targets)[rows.kept]
        finite = residuals[residuals.abs() < 2.0**_LARGEST]
        self._left_out += residuals.numel() - finite.numel()
        if not finite.numel():
            return
        low, high = (float(end) for end in finite.aminmax())
        self._widen(low, high)
        scaled = (finite * 2.0**-self._width).floor().long()
        first = int(scaled.min())
        counts = torch.bincount(scaled - first).tolist()
        self._counts.update({first + i: count for i, count in enumerate(counts) if count})

    def _widen(self, low: float, high: float) -> None:
        """Widen the bins until the range is in them, with what they hold."""
        exponent = _width_of(low, high)
        if self._counts:
            exponent = max(exponent, self._width)
        while self._counts and not _fits(exponent, low, high, self._counts, self._width):
            exponent += 1
        self._counts = _widened(self._counts, exponent - self._width)
        self._width = exponent

    def to_json(self) -> Any:
        """Return the exponent of the width, the counts by bin, and how many are left out."""
        return [self._width, list(self._counts.items()), self._left_out]

    def merge(self, ranks: Sequence[Any]) -> dict[str, Any]:
        """Return the counts from the first bin that has some to the last one."""
        left_out = sum(n for *_, n in ranks)
        held = [(width, Counter(dict(pairs))) for width, pairs, _ in ranks if pairs]
        if not held:
            return {"residuals": None, "not_finite": left_out}
        width = max(width for width, _ in held)
        while True:
            total = Counter[int]()
            for own, counts in held:
                total.update(_widened(counts, width - own))
            first, last = min(total), max(total)
            if last - first < RESIDUAL_BINS:
                break
            width += 1
        listed = [total.get(index, 0) for index in range(first, last + 1)]
        found = {"first": first * 2.0**width, "width": 2.0**width, "counts": listed}
        return {"residuals": found, "not_finite": left_out}


def _width_of(low: float, high: float) -> int:
    """Return the exponent of the smallest width by which a range has few bins, with exact ends."""
    largest = max(abs(low), abs(high))
    exponent = max(_SMALLEST, math.frexp(largest)[1] - 40) if largest else _SMALLEST
    while math.floor(high * 2.0**-exponent) - math.floor(low * 2.0**-exponent) >= RESIDUAL_BINS:
        exponent += 1
    return exponent


def _fits(exponent: int, low: float, high: float, counts: Mapping[int, int], width: int) -> bool:
    shift = exponent - width
    ends = [math.floor(end * 2.0**-exponent) for end in (low, high)]
    ends += [min(counts) >> shift, max(counts) >> shift]
    return max(ends) - min(ends) < RESIDUAL_BINS


def _widened(counts: Mapping[int, int], shift: int) -> Counter[int]:
    """Return counts in bins that are 2**shift as wide."""
    found = Counter[int]()
    for index, count in counts.items():
        found[index >> shift] += count
    return found


class Points:
    """Pairs of target and prediction, of one element each of some samples.

    A hash of the index chooses samples and elements, so nothing is drawn.
    """

    def __init__(self) -> None:
        self._points: list[list[Any]] = []  # hash, target, prediction

    def add(self, rows: Rows, at: Positions) -> None:
        """Keep the points of the samples whose hashes are the smallest so far."""
        samples, elements = rows.targets.shape
        if not elements:
            return
        hashes = hash_rows(at, samples)
        chosen = np.argsort(hashes, kind="stable")[:POINTS]
        if len(self._points) == POINTS:
            chosen = chosen[hashes[chosen] < self._points[-1][0]]
        if not len(chosen):
            return
        index = torch.from_numpy(chosen)
        columns = torch.from_numpy((hashes[chosen] % np.uint64(elements)).astype(np.int64))
        pairs = [_take(tensor, index, columns) for tensor in (rows.targets, rows.predictions)]
        found = zip(hashes[chosen].tolist(), *pairs, strict=True)
        self._points = sorted([*self._points, *map(list, found)])[:POINTS]

    def to_json(self) -> Any:
        """Return the points with their hashes."""
        return self._points

    def merge(self, ranks: Sequence[Any]) -> dict[str, Any]:
        """Return [target, prediction] of each point; those that are not finite are left out."""
        points = sorted(map(tuple, _flat(ranks)))[:POINTS]
        finite = ((t, p) for _, t, p in points if math.isfinite(t) and math.isfinite(p))
        return {"points": [[round_digits(t), round_digits(p)] for t, p in finite]}


def hash_rows(at: Positions, samples: int) -> NDArray[np.uint64]:
    """Return a number for each sample that looks random: splitmix64 of its position."""
    numbers = at.indices[:samples].astype(np.uint64)
    if at.by_row:
        own = np.arange(samples, dtype=np.uint64)
        numbers = np.add(np.left_shift(numbers, np.uint64(20)), own)
    mixed: NDArray[np.uint64] = np.add(numbers, np.uint64(0x9E3779B97F4A7C15))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return np.right_shift(mixed, np.uint64(11))  # 53 bits, which JSON holds exactly


def round_digits(value: float) -> float:
    """Return a number with six digits, as many as a chart can show."""
    return float(f"{value:.6g}")


def _take(tensor: Tensor, rows: Tensor, columns: Tensor) -> list[float]:
    device = tensor.device
    found: list[float] = tensor[rows.to(device), columns.to(device)].tolist()
    return found


def _flat(lists: Iterable[Iterable[Any]]) -> Iterable[Any]:
    return (item for part in lists for item in part)


STATISTICS: Mapping[Kind, tuple[Callable[[], Statistic], ...]] = {
    "classes": (Confusion, Calibration),
    "labels": (Confusion, Calibration, LabelCounts),
    "numbers": (Residuals, Points),
}
