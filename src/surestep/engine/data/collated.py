"""How many samples a batch holds, counted where it is collated."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, default_convert

from surestep.engine.batch import count_made_of, flatten_tensors, tensors_with_rows


class CollatedBatch(NamedTuple):
    """A batch, and of how many samples it was collated; None if that is not known."""

    batch: Any
    samples: int | None


def collate_counted(collate: Callable[[Any], Any], samples: Any) -> CollatedBatch:
    """Collate samples, and count them."""
    batch = collate(samples)
    return CollatedBatch(batch, count_collated(samples, batch))


def count_collated(samples: Any, batch: Any) -> int | None:
    """Return of how many of the samples a batch was made; None if that is not known.

    Those that are None, since they could not be read, do not count unless something has replaced
    them. See `count_made_of` for others that are left out.
    """
    if not isinstance(samples, (list, tuple)):  # columns of a dataset with its own `__getitems__`
        return None
    given = [sample for sample in samples if sample is not None] or samples
    made = tensors_with_rows(batch)
    rows = set(map(len, made))
    are_replaced = len(samples) in rows and len(given) not in rows
    count = len(samples if are_replaced else given)
    return count_made_of(count, made, joined=_joined_rows(given), sizes=set())


def _joined_rows(samples: Sequence[Any]) -> Iterator[int]:
    """Yield how many rows each tensor of a batch has that joins those of all samples."""
    columns = zip(*map(flatten_tensors, map(default_convert, samples)), strict=False)
    yield from (sum(len(x) if x.dim() else 1 for x in column) for column in columns)


_LIBRARIES = ("torch", "torchdata")  # whose loaders yield what is collated


class _CountingCollate:
    """A collate function that counts."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> CollatedBatch:
        return collate_counted(self.collate, samples)


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
