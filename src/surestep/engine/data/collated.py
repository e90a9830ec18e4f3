"""How many samples a ready batch holds, counted where it is collated."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader


class CollatedBatch(NamedTuple):
    """A batch, and of how many samples it was collated; None if that is not known."""

    batch: Any
    samples: int | None


_LIBRARIES = ("torch", "torchdata")  # whose loaders yield what is collated


class _CountingCollate:
    """A collate function that counts."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> CollatedBatch:
        # A dataset with its own `__getitems__` may return columns.
        count = len(samples) if isinstance(samples, (list, tuple)) else None
        return CollatedBatch(self.collate(samples), count)


# A loader with persistent workers keeps them, so each has one copy.
_COUNTING: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def count_batches(stream: Any) -> Any:
    """Return a loader like a DataLoader, which makes each batch a CollatedBatch.

    Anything else is returned as it is, also a loader whose own iteration may change batches.
    """
    if not isinstance(stream, DataLoader) or stream.batch_sampler is None:
        return stream
    if type(stream).__iter__.__module__.partition(".")[0] not in _LIBRARIES:
        return stream
    found = _COUNTING.get(stream)
    if found is None or found.collate_fn.collate is not stream.collate_fn:
        found = copy.copy(stream)
        found._iterator = None
        found.collate_fn = _CountingCollate(stream.collate_fn)
        _COUNTING[stream] = found
    return found


def batch_of(raw: Any) -> Any:
    """Return the batch of a CollatedBatch; anything else as it is."""
    return raw.batch if isinstance(raw, CollatedBatch) else raw
