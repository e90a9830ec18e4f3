"""A stream's own state, by which a run goes on without reading again what it has read.

What has `state_dict()` and `load_state_dict()` may be the stream, what its function returns, or the
iterator of either. States are loaded into copies only, so the stream stays as it was given.
"""

import copy
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from surestep.engine.data.state_encoding import decode_state, encode_state

BY_STATE = "by its own state"
CHEAP_S = 1e-3  # a state that takes no longer is taken with every batch
SHARE = 100  # a dearer one takes at most one part in so many of the time
SHARED_BYTES = 2**20  # arrays from here on are data and not state: copies share them
_WALKED = 2000  # objects, as in the search for generators


class WorkerProgress(NamedTuple):
    """How far a worker is in its part of a stream.

    Attributes:
        given: samples in the whole batches that were consumed.
        read: samples that were read when the state was taken.
        state: packed; None is the beginning.
    """

    given: int = 0
    read: int = 0
    state: Any = None


class StreamCheckpoint(NamedTuple):
    """A place in a pass over a stream, with the states to go on from.

    Attributes:
        epoch: of the pass.
        position: samples consumed; the end of a whole batch.
        size: of a batch.
        last: the worker whose batch came last.
        parts: how far each worker is.
    """

    epoch: int
    position: int
    size: int
    last: int
    parts: tuple[WorkerProgress, ...]

    @property
    def again(self) -> int:
        """Count the samples that were consumed after the states were taken."""
        return sum(part.given - part.read for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {**self._asdict(), "parts": [part._asdict() for part in self.parts]}


def parse_stream_checkpoint(saved: Any) -> StreamCheckpoint | None:
    """Return the mark that a checkpoint holds; None where it has none, or none of this form."""
    try:
        mark = StreamCheckpoint(
            **{**saved, "parts": tuple(WorkerProgress(**each) for each in saved["parts"])}
        )
    except (KeyError, TypeError):
        return None
    numbers = [*mark[:4], *(number for part in mark.parts for number in part[:2])]
    counts = all(type(each) is int and each >= 0 for each in numbers)
    return mark if counts and mark.last < len(mark.parts) else None


def iterate_epoch(stream: Any, epoch: int) -> Iterable[Any]:
    """Return what to iterate in an epoch, which knows the epoch where it wants to."""
    if not hasattr(stream, "__iter__"):
        wants_epoch = bool(inspect.signature(stream).parameters)
        made: Iterable[Any] = stream(epoch) if wants_epoch else stream()
        return made
    set_epoch: Callable[[int], object] | None = getattr(stream, "set_epoch", None)
    if callable(set_epoch):
        set_epoch(epoch)
    found: Iterable[Any] = stream
    return found


def has_state(owner: Any) -> bool:
    """Say whether something can tell its state and take up another."""
    methods = (getattr(owner, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(owner, type) and all(map(callable, methods))


class StreamStateTracker:
    """The state of a stream in one pass over it; it goes on from a part."""

    def __init__(self, part: WorkerProgress | None = None) -> None:
        self.read = 0 if part is None else part.read
        self._state: Any = None if part is None else part.state
        self.owner: Any = None
        self._took: deque[float] = deque(maxlen=4)
        self._next_s = 0.0

    def start(self, stream: Any, epoch: int) -> Iterator[Any]:
        """Return the samples of an epoch from the part on."""
        found = iterate_epoch(copy_stream(stream), epoch)
        if has_state(found):
            self.owner = found
            self._load()
            return iter(found)
        samples = iter(found)
        if has_state(samples):
            self.owner = samples
            self._load()
        return samples

    def _load(self) -> None:
        if self._state is not None:
            self.owner.load_state_dict(decode_state(self._state))

    def maybe_state_dict(self) -> Any:
        """Return the state after the last sample, packed; None where it costs too much now.

        What a stream takes at best is judged, since other processes may be in the way of one.
        """
        start = time.perf_counter()
        if self.owner is None or start < self._next_s:
            return None
        try:
            state = encode_state(self.owner.state_dict())
        except TypeError:  # it has become something that cannot be saved: the last one stays
            state = None
        end = time.perf_counter()
        self._took.append(end - start)
        if len(self._took) == self._took.maxlen and min(self._took) > CHEAP_S:
            self._next_s = end + SHARE * min(self._took)
        return state


def copy_stream(stream: Any) -> Any:
    """Return a copy of a stream that has a state, large arrays shared; of others, itself.

    So each pass begins with the stream as it was given, without workers as with them, and whoever
    else reads it is not in the way. What cannot be copied is returned itself.
    """
    if not has_state(stream):
        return stream
    try:
        return copy_sharing_arrays(stream)
    except Exception:  # of the user's own classes; `trial` tells it
        return stream


def copy_sharing_arrays(stream: Any) -> Any:
    """Return a copy that shares the large arrays."""
    return copy.deepcopy(stream, {id(each): each for each in _large_arrays(stream)})


def _large_arrays(root: Any) -> Iterable[Any]:
    waiting, seen = deque([root]), {id(root)}
    while waiting and len(seen) < _WALKED:
        value = waiting.popleft()
        if isinstance(value, (Tensor, np.ndarray)):
            if value.nbytes >= SHARED_BYTES:
                yield value
            continue
        members = getattr(value, "__dict__", {}).values()
        if isinstance(value, Mapping):
            members = [*members, *value.values()]
        elif isinstance(value, (list, tuple)):
            members = [*members, *value[:_WALKED]]
        for each in members:
            if id(each) not in seen and not isinstance(each, (str, bytes, int, float, type)):
                seen.add(id(each))
                waiting.append(each)
