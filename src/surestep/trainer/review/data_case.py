"""What is known of the data of a run before it trains: modules in `of_data` take a `DataCase`.

Some samples of each split are read, spread over it, until a time limit. Each is read under the seed
of its position and with the generators of the program restored, as the run itself reads it, so that
nothing that the run computes changes. Of a stream, which has no positions, the first samples are
read in a separate pass.
"""

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from surestep.base.errors import DataError
from surestep.engine.batch import flatten_tensors, only_element
from surestep.engine.checks.samples import has_opaque
from surestep.engine.data.batched import NoData
from surestep.engine.data.dataset import count_samples, find_collate, in_memory, unwrap_loader
from surestep.engine.data.make_source import is_in_memory, make_source
from surestep.engine.data.origins import list_entries
from surestep.engine.data.stream import StreamReader, digest, fingerprint, is_stream
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.data.stream_state import copy_stream
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import preserve_rng
from surestep.engine.step.loop import Loop
from surestep.engine.task.task import Task

_SECONDS = 1.0  # for reading all splits
_SLOW = 0.1  # seconds for one sample, after which no other one is read
_ROWS = 10_000  # of a split at most
_GOLDEN = 0.6180339887498949
_NUMBERS = 2**23  # in the samples of a split at most
_END = object()  # after the last sample of a stream


@dataclass(frozen=True)
class ReadSplit:
    """The samples of a split that were read.

    Attributes:
        name: "train", "test" or the name of a validation set.
        count: how many samples the split has, with excluded ones; None for a stream that was not
            read to its end.
        rows: the indices of the samples that were read, ascending.
        digests: of the inputs of each; empty if they are not tensors.
        inputs: the tensors of the inputs, (rows read, ...); None if their shapes differ, or if
            an element of the data is a batch.
        targets: likewise.
        n_excluded: how many samples are excluded from training, and not read.
    """

    name: str
    count: int | None
    rows: list[int]
    digests: list[bytes]
    inputs: tuple[Tensor, ...] | None = None
    targets: tuple[Tensor, ...] | None = None
    n_excluded: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every sample was read that is not excluded."""
        return self.share == 1

    @property
    def share(self) -> float | None:
        """The share of the samples that was read; None if it is not known.

        The samples are then the first ones, which may be unlike the others.
        """
        return None if self.count is None else len(self.rows) / (self.count - self.n_excluded)

    @property
    def labels(self) -> Tensor | None:
        """The class index of each sample, (rows read,); None if the targets are something else."""
        values = self.values
        return None if values is None or values.is_floating_point() else values

    @property
    def values(self) -> Tensor | None:
        """The target of each sample, (rows read,); None if it is not one real number."""
        if self.targets is None or len(self.targets) != 1:
            return None
        (values,) = self.targets
        if values.numel() != len(self.rows) or values.is_complex():
            return None
        return values.reshape(-1)

    @cached_property
    def features(self) -> Tensor | None:
        """The inputs as a table, (rows read, columns), float32; None if they are not one."""
        if self.inputs is None or len(self.inputs) != 1 or self.inputs[0].is_complex():
            return None
        return self.inputs[0].reshape(len(self.rows), -1).float()


@dataclass(frozen=True)
class DataCase:
    """The data of a run.

    Attributes:
        task: the model, the loss and the data.
        plan: the options of the run.
        loop: with the model and the loader.
        train: the samples to train on.
        others: the validation sets and the test set, as far as they were read.
        same: names of the sets that are the very object that is trained on.
    """

    task: Task
    plan: Plan
    loop: Loop
    train: ReadSplit
    others: tuple[ReadSplit, ...]
    same: tuple[str, ...]

    def read_origins(self, option: str) -> tuple[list[Any], dict[str, list[Any]]]:
        """Return the "groups" or "times" of the training data, and those of the other sets.

        Samples that are excluded from training are left out; both are empty if the Task has none.
        """
        given, excluded = getattr(self.task, option), self.plan.exclude_samples
        if "train" not in given:
            return [], {}
        kept = None
        if excluded is not None:  # so the data is not a stream
            kept = _keep(list(range(self.train.count or 0)), excluded)
        own = list_entries(given["train"], kept)
        names = [split.name for split in self.others if split.name in given]
        return own, {name: list_entries(given[name]) for name in names}

    @cached_property
    def classes(self) -> int | None:
        """Among how many classes the outputs choose; None if that is not known."""
        loss, signature = self.loop.loader.loss, self.loop.context.signature
        outputs = [] if signature is None else signature["outputs"]
        if loss.class_dim is None or len(outputs) != 1 or len(outputs[0]["shape"]) < 2:
            return None
        return int(outputs[0]["shape"][loss.class_dim])

    @property
    def ignored_class(self) -> int:
        """The class index of targets that the loss leaves out."""
        return int(getattr(self.loop.loader.loss.module, "ignore_index", -100))


def read_data(loop: Loop, task: Task, plan: Plan) -> DataCase | None:
    """Read samples of the splits; None if the training data has none that can be read twice."""
    if plan.doctor_check_data == "off" or isinstance(task.train, NoData):
        return None
    if task.train is None or plan.data_randomness == "not exact":
        return None
    sets = {**task.val_sets(), **({} if task.test is None else {"test": task.test})}
    same = tuple(name for name, data in sets.items() if data is task.train)
    to_read = {name: data for name, data in sets.items() if name not in same}
    seconds = math.inf if plan.doctor_check_data == "all" else _SECONDS / 2
    train = read_split(task.train, "train", task, plan, seconds)
    if train is None:
        return None
    if plan.exclude_samples is not None:
        train = replace(train, n_excluded=len(plan.exclude_samples.samples))
    found = [
        read_split(to_read[name], name, task, plan, seconds / len(to_read)) for name in to_read
    ]
    return DataCase(task, plan, loop, train, tuple(filter(None, found)), same)


def read_split(data: Any, name: str, task: Task, plan: Plan, seconds: float) -> ReadSplit | None:
    """Read samples of a split for so many seconds; None if there are none to read.

    Args:
        data: of the split.
        name: of the split.
        task: has what loads and splits a batch.
        plan: the options of the run.
        seconds: after which no other sample is read; infinite reads all. Samples that are in memory
            need none.
    """
    if is_stream(data):
        return _read_stream(data, name, task, plan, min(seconds, _SECONDS / 2))
    count = count_samples(data, name)
    if not count:
        return None
    is_all = seconds == math.inf
    excluded = plan.exclude_samples if name == "train" else None
    if is_in_memory(data, task):
        memory = in_memory(unwrap_loader(data))
        assert memory is not None
        numbers = sum(tensor[:1].numel() for tensor in memory.by_name.values())
        most = count if is_all else min(_ROWS, max(1, _NUMBERS // max(1, numbers)))
        rows = _keep(sorted(spread_indices(count, most)), excluded)
        return _split_batches(name, count, rows, [memory.batch(rows)], task) if rows else None
    # As for a fingerprint: one worker loads if there are workers, since a dataset may open its
    # files in the process that loads first.
    workers = min(max(plan.data_num_workers, getattr(data, "num_workers", 0)), 1)
    one = plan.replace(
        data_num_workers=workers, data_persistent_workers=False, data_pin_memory=False
    )
    source = make_source(data, name, BatchLayout(count, 1, 1), task=task, plan=one, training=True)
    assert not isinstance(source, StreamLoader)
    order = _keep(spread_indices(count, count if is_all else min(count, _ROWS)), excluded)
    ranges = [range(position, position + 1) for position in range(len(order))]
    try:
        batches = list(_limit(source.read(0, torch.tensor(order), ranges), seconds))
    except Exception:  # of the user's dataset; the first batch reports it
        return None
    finally:
        source.close()
    read = sorted(zip(order, batches, strict=False), key=lambda pair: pair[0])
    rows = [row for row, _ in read]
    return _split_batches(name, count, rows, [batch for _, batch in read], task) if rows else None


def _keep(rows: list[int], excluded: Any) -> list[int]:
    left_out = set() if excluded is None else set(excluded.samples)
    return [row for row in rows if row not in left_out]


def _read_stream(data: Any, name: str, task: Task, plan: Plan, seconds: float) -> ReadSplit | None:
    """Read the first samples of a stream, in a separate pass; None if there are none to read.

    A pass starts from the beginning, but not the generators that the stream or the `collate_fn`
    owns: these would draw other numbers in later passes, so nothing is read then. That a stream to
    train on can be read again was checked; of another one, the first sample is compared.
    """
    stream, collate = unwrap_loader(data), find_collate(data, task)
    shared = {"collate_fn": collate, **({} if _is_copied(stream) else {"stream": stream})}
    if OwnGenerators(*shared.items()).found:
        return None
    reader = StreamReader(stream, plan.seed, name)
    with preserve_rng(), closing(_read_pass(reader, collate or default_collate, name)) as batches:
        try:
            read = list(_limit(islice(chain(batches, [_END]), _ROWS), seconds))
        except Exception:  # of the user's stream; the first batch reports it
            return None
    has_ended = read[-1] is _END
    rows = list(range(len(read) - has_ended))
    count = len(rows) if has_ended else None
    return _split_batches(name, count, rows, read[: len(rows)], task) if rows else None


def _is_copied(stream: Any) -> bool:
    """Return whether each pass reads a copy of a stream."""
    try:
        return copy_stream(stream) is not stream
    except Exception:  # of the user's class
        return False


def _read_pass(
    reader: StreamReader, collate: Callable[[list[Any]], Any], name: str
) -> Generator[Any, None, None]:
    """Yield batches of one sample, collated under the seed of its position.

    None are yielded if the stream begins differently the second time.
    """
    first = None if name == "train" else fingerprint(reader, 1)
    for position, sample in enumerate(reader.samples(0)):
        if position == 0 and first not in (None, digest([digest(sample)])):
            return
        reader.seed_position(0, position)
        yield collate([sample])


def _limit(batches: Iterable[Any], seconds: float) -> Iterator[Any]:
    """Yield batches of one sample until the time is over, or one sample takes long."""
    start = before = time.monotonic()
    numbers = 0
    for batch in batches:
        yield batch
        now, numbers = time.monotonic(), numbers + sum(t.numel() for t in flatten_tensors(batch))
        if seconds < math.inf and (
            now - start > seconds or now - before > _SLOW or numbers > _NUMBERS
        ):
            return
        before = now


def spread_indices(count: int, most: int) -> list[int]:
    """Return different indices of a split, of which each beginning is spread evenly over it."""
    most = min(count, most)
    parts = torch.arange(most, dtype=torch.float64) * _GOLDEN % 1  # the golden ratio spreads best
    indices = dict.fromkeys((parts * count).long().tolist())
    rest = (index for index in range(count) if index not in indices)
    return [*indices, *islice(rest, most - len(indices))]


def _split_batches(
    name: str, count: int | None, rows: list[int], batches: list[Any], task: Task
) -> ReadSplit:
    """Return a split from batches with all its rows, or of one row each."""
    inputs, targets = [], []
    for batch in batches:
        try:
            args, kwargs, wanted = task.split_batch(batch)
        except (DataError, ValueError, KeyError, TypeError, IndexError, AttributeError):
            args, kwargs, wanted = (batch,), {}, None
        inputs.append((args, dict(kwargs)))
        targets.append(wanted)
    is_known = not any(map(has_opaque, inputs)) and bool(flatten_tensors(inputs[0]))
    leaves = [[tensor.detach().cpu() for tensor in flatten_tensors(value)] for value in inputs]
    digests = []
    if is_known:
        digests = _digest_rows(leaves[0]) if len(batches) == 1 else list(map(_digest, leaves))
        digests = digests if len(digests) == len(rows) else []
    if task.collate_fn is only_element:
        return ReadSplit(name, count, rows, digests)
    return ReadSplit(name, count, rows, digests, _join(leaves, rows), _join_targets(targets, rows))


def _join_targets(targets: list[Any], rows: list[int]) -> tuple[Tensor, ...] | None:
    if any(target is None or has_opaque(target) for target in targets):
        return None
    return _join([[t.detach().cpu() for t in flatten_tensors(target)] for target in targets], rows)


def _join(leaves: list[list[Tensor]], rows: list[int]) -> tuple[Tensor, ...] | None:
    """Return tensors with a row for each sample; None if the samples differ in shape."""
    shapes = {tuple((tensor.shape[1:], tensor.dtype) for tensor in sample) for sample in leaves}
    if len(shapes) != 1 or not leaves[0] or any(not t.dim() for s in leaves for t in s):
        return None
    joined = tuple(torch.cat(parts) for parts in zip(*leaves, strict=True))
    return joined if all(len(tensor) == len(rows) for tensor in joined) else None


def _digest_rows(tensors: list[Tensor]) -> list[bytes]:
    """Return a digest of each row of tensors with the same number of rows."""
    if len({len(tensor) if tensor.dim() else 0 for tensor in tensors}) != 1:
        return []
    arrays = [tensor.contiguous().view(torch.uint8).numpy() for tensor in map(_columns, tensors)]
    return [_blake(*(array[row].tobytes() for array in arrays)) for row in range(len(arrays[0]))]


def _digest(tensors: list[Tensor]) -> bytes:
    """Return a digest of one sample; two shapes give two digests."""
    flat = [tensor.reshape(1, -1).contiguous().view(torch.uint8).numpy() for tensor in tensors]
    return _blake(*(array.tobytes() for array in flat))


def _columns(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1)


def _blake(*parts: bytes) -> bytes:
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()
