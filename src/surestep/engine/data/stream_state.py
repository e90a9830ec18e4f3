"""A stream's own state, by which a run resumes without reading again what it has read.

The object with `state_dict()` and `load_state_dict()` may be the stream, what its function returns,
or the iterator of either. States are loaded into copies, so the stream stays as it was given.
"""

import copy
import inspect
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.data.collated import count_batches

BY_STATE = "by its own state"
STREAM = "the training stream"  # the name of its state in a checkpoint
CHEAP_S = 1e-3  # a state that takes no longer is saved with every batch
SHARE = 100  # a slower one takes at most 1 / SHARE of the time
SHARED_BYTES = 2**20  # arrays from this size on are data and not state: copies share them
_SEARCHED = 2000  # objects
# How a saved state holds what a checkpoint's JSON does not have: {"$pairs": [[1, "a"]]}.
PAIRS, ARRAY = "$pairs", "$array"


class WorkerProgress(NamedTuple):
    """The progress of a worker in its shard of a stream."""

    given: int = 0  # samples in the full batches that were consumed
    read: int = 0  # samples that were read when the state was saved
    state: Any = None  # encoded; None is the beginning
    last: str | None = None  # digest of the last of the given samples
    following: str | None = None  # digest of the last of the next batch, once that was read


class StreamCheckpoint(NamedTuple):
    """A position in a pass over a stream, with the states to resume from."""

    epoch: int
    position: int  # samples consumed; the end of a full batch
    size: int  # of a batch
    last: int  # the worker whose batch was the last
    parts: tuple[WorkerProgress, ...]

    @property
    def again(self) -> int:
        """Count the samples that were consumed after the states were saved."""
        return sum(part.given - part.read for part in self.parts)

    @property
    def replays(self) -> bool:
        """Whether the last batch of a worker is read again, as no digest of its next is there."""
        return any(part.last is not None and part.following is None for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {**self._asdict(), "parts": [part._asdict() for part in self.parts]}


def parse_stream_checkpoint(saved: Any) -> StreamCheckpoint | None:
    """Return the stream's position in a checkpoint; None if it has none, or not in this form."""
    try:
        parts = tuple(WorkerProgress(**part) for part in saved["parts"])
        found = StreamCheckpoint(**{**saved, "parts": parts})
    except (KeyError, TypeError):
        return None
    numbers = [*found[:4], *(number for part in parts for number in part[:2])]
    are_counts = all(type(number) is int and number >= 0 for number in numbers)
    digests = [digest for part in parts for digest in part[3:]]
    are_digests = all(digest is None or type(digest) is str for digest in digests)
    return found if are_counts and are_digests and found.last < len(parts) else None


def has_state(owner: Any) -> bool:
    """Return whether an object can save and load its state."""
    methods = (getattr(owner, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(owner, type) and all(map(callable, methods))


class StreamStateTracker:
    """The state of a stream in one pass over it, which may start from a worker's progress."""

    def __init__(self, part: WorkerProgress | None = None) -> None:
        part = part or WorkerProgress()
        self.read, self._state = part.read, part.state
        self.owner: Any = None
        self._took_s: deque[float] = deque(maxlen=4)
        self._next_s = 0.0

    def start(self, stream: Any, epoch: int, *, counts: bool = False) -> Iterator[Any]:
        """Return the remaining samples of an epoch.

        With `counts`, batches that a DataLoader makes are each a CollatedBatch.
        """
        self.owner = None
        with suppress(Exception):  # of the user's classes; `find_state_problem` reports it
            stream = copy_stream(stream)
        if not hasattr(stream, "__iter__"):  # a function that returns what to iterate
            stream = _call(stream, epoch)
        elif callable(getattr(stream, "set_epoch", None)):
            stream.set_epoch(epoch)
        if counts:
            stream = count_batches(stream)
        if has_state(stream):
            self._own(stream)
        samples: Iterator[Any] = iter(stream)
        if self.owner is None and has_state(samples):
            self._own(samples)
        return samples

    def _own(self, owner: Any) -> None:
        self.owner = owner
        if self._state is not None:
            owner.load_state_dict(decode_state(self._state))

    def maybe_state_dict(self) -> Any:
        """Return the encoded state after the last sample; None if saving takes too long now.

        The shortest of the last four times decides, since other processes can slow one down.
        """
        start = time.perf_counter()
        if self.owner is None or start < self._next_s:
            return None
        try:
            state = encode_state(self.owner.state_dict())
        except TypeError:  # it now holds something that cannot be saved: the last one stays
            state = None
        end = time.perf_counter()
        self._took_s.append(end - start)
        if len(self._took_s) == self._took_s.maxlen and min(self._took_s) > CHEAP_S:
            self._next_s = end + SHARE * min(self._took_s)
        return state


# The iterator that a function returned last; most can be referenced weakly.
_RETURNED: WeakKeyDictionary[Callable[..., Any], Callable[[], Any]] = WeakKeyDictionary()


def _call(function: Callable[..., Any], epoch: int) -> Any:
    """Return what a function makes to iterate; an iterator must be a new one each time."""
    found = _call_with_epoch(function, epoch)
    # A class of the user may begin again in its own __iter__; those of torch do not.
    is_of_torch = type(found).__module__.partition(".")[0] == "torch"
    may_restart = inspect.isfunction(getattr(type(found), "__iter__", None)) and not is_of_torch
    if hasattr(found, "__next__") and not may_restart:
        before = _RETURNED.get(function)
        if before is not None and before() is found:
            raise DataError(
                f"A stream is a function that returns one {type(found).__name__} again and again, "
                "of which a part has been read. Let the function make a new one each time: "
                "lambda: make_samples()."
            )
        try:
            _RETURNED[function] = ref(found)
        except TypeError:  # such as an iterator of a list
            _RETURNED[function] = lambda: found
    return found


def _call_with_epoch(function: Any, epoch: int) -> Any:
    """Call the function of a stream, with the epoch if it takes one.

    A parameter with another name and a default is often what a lambda in a loop holds, as in
    `lambda path=path: read(path)`.
    """
    parameters = inspect.signature(function).parameters
    named = parameters.get("epoch")
    if named is not None and named.kind in (named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY):
        return function(epoch=epoch)
    needed = any(
        parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        for parameter in parameters.values()
    )
    return function(epoch) if needed else function()


def copy_stream(stream: Any) -> Any:
    """Return a copy of a stream that has a state; it shares the large arrays.

    So each pass begins with the stream as it was given, and no other reader changes it.
    """
    if not has_state(stream):
        return stream
    return copy.deepcopy(stream, {id(array): array for array in _large_arrays(stream)})


def _large_arrays(root: Any) -> Iterable[Any]:
    waiting, visited = deque([root]), {id(root)}
    while waiting and len(visited) < _SEARCHED:
        value = waiting.popleft()
        if isinstance(value, (Tensor, np.ndarray)):
            if value.nbytes >= SHARED_BYTES:
                yield value
            continue
        members = list(getattr(value, "__dict__", {}).values())
        if isinstance(value, Mapping):
            members += value.values()
        elif isinstance(value, (list, tuple)):
            members += value[:_SEARCHED]
        for member in members:
            if id(member) not in visited and not isinstance(member, (str, bytes, int, float, type)):
                visited.add(id(member))
                waiting.append(member)


def encode_state(value: Any) -> Any:
    """Copy a state, in a form that a checkpoint can hold."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray):
        return {ARRAY: torch.from_numpy(value.copy())}
    if isinstance(value, np.generic):
        return encode_state(value.item())
    if isinstance(value, Mapping):
        if all(type(name) is str and not name.startswith("$") for name in value):
            return {name: encode_state(member) for name, member in value.items()}
        return {PAIRS: [[encode_state(name), encode_state(value[name])] for name in value]}
    if type(value) is tuple or isinstance(value, list):
        return (tuple if type(value) is tuple else list)(map(encode_state, value))
    raise TypeError(f"a {type(value).__name__} has no form in JSON or safetensors")


def decode_state(value: Any) -> Any:
    """Return a copy of what was encoded."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(map(decode_state, value))
    if not isinstance(value, dict):
        return value
    if value.keys() == {ARRAY}:
        return torch.as_tensor(value[ARRAY]).numpy().copy()
    if value.keys() == {PAIRS}:
        return {decode_state(name): decode_state(member) for name, member in value[PAIRS]}
    return {name: decode_state(member) for name, member in value.items()}
