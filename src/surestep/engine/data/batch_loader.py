"""The batches of one part of the data: read, counted, cut and moved to the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, islice, tee
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surestep.base.errors import DataError, WorkerError
from surestep.engine.batch import (
    Batch,
    MicroBatch,
    as_empty,
    batch_size_of,
    channels_last,
    flatten_tensors,
    map_tensors,
    move,
    only_element,
    sum_part_items,
)
from surestep.engine.data.apply_transform import BatchTransform, make_batch_transform
from surestep.engine.data.batched import NoData
from surestep.engine.data.dataset import check_no_sampler, count_samples, loader_settings
from surestep.engine.data.exclude_samples import filter_order
from surestep.engine.data.failures import check_targets
from surestep.engine.data.open_source import make_source
from surestep.engine.data.sources import InMemory, MapStyleSource, Source
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.losses.adapt import IGNORED, Loss, items_only_loss
from surestep.engine.losses.model_loss import inputs_with_targets
from surestep.engine.losses.multi import with_items
from surestep.engine.plan.batching import (
    BatchLayout,
    SampleOrder,
    epoch_permutation,
    positions_or_dummy,
)
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task

_NOTHING: Mapping[str, Any] = {}
FIRST_BATCHES = 16  # that are read at most, to find one with items


class BatchLoader:
    """Batches by place, from (epoch, position) on.

    Args:
        source: where the samples are.
        part: what the data is called: "train", "val", ...
        cut: how an epoch is cut.
        task: tells inputs from targets.
        loss: counts items, on the host, before anything is moved: no device is read for it.
        plan: device, seed, pinned memory.
        order: which sample stands at each position of an epoch; None is the plain shuffle, or
            as stored where `shuffle` is false.
        transform: what the step does to a batch before anything else; not done here.
        open_with: opens the same samples with a different cut.

    Attributes:
        is_ready: each element of the data is a batch already.
        leave: asked before each batch that is measured, whether to leave off.
        retry: asked when a data worker died, whether to read on with new ones.
    """

    def __init__(
        self,
        source: Source | StreamLoader,
        cut: BatchLayout,
        *,
        part: str,
        task: Task,
        loss: Loss,
        plan: Plan,
        shuffle: bool,
        order: SampleOrder | None = None,
        transform: BatchTransform | None = None,
        open_with: Callable[[BatchLayout], Source | StreamLoader] | None = None,
    ) -> None:
        self.source = source
        self.subset = part
        self._open_with = open_with
        self.layout = cut
        self.split = channels_last(task.split_batch) if plan.channels_last else task.split_batch
        plain = task.inputs is None and task.loss is not None and task.loss != "model"
        self._is_plain = plain and not plan.channels_last
        self.is_ready = task.collate_fn is only_element
        self.loss = loss
        self.shuffle = shuffle
        self.order = order
        self.transform = transform
        self.seed = plan.seed
        self.device = plan.device
        self.pin = plan.data_pin_memory and isinstance(source, InMemory)
        self.leave: Callable[[], bool] | None = None
        self.retry: Callable[[WorkerError], bool] | None = None
        self.shared = cut.ranks > 1
        self._uniform = _uniform_items(source, task, loss)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` from the one at position `start` on."""
        read = self._read(epoch, start) if self.retry is None else self._retried(epoch, start)
        if self.device.type == "cuda":
            return self._moved_ahead(read)
        return read if self.device.type == "cpu" else map(self.move, read)

    def _retried(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches; read on where a worker died, with new ones, if that is wanted."""
        while True:
            try:
                for batch in self._read(epoch, start):
                    start = batch.end
                    yield batch
                return
            except WorkerError as error:
                self.close()
                if self.retry is None or not self.retry(error):
                    raise

    def _read(self, epoch: int, start: int) -> Iterator[Batch]:
        if isinstance(self.source, StreamLoader):
            yield from self._read_stream(self.source, epoch, start)
            return
        order = self.epoch_order(epoch)
        cuts, ahead = tee(chain.from_iterable(self.layout.iter_chunks(start)))
        wanted = chain.from_iterable(map(itemgetter(3), ahead))
        raw = self.source.read(
            epoch, order, map(positions_or_dummy, wanted) if self.shared else wanted
        )
        loaded = self.source if isinstance(self.source, MapStyleSource) else None
        rows = None if self._uniform is None else self._uniform.rows(order)
        for first, end, ends_epoch, ranges in cuts:
            pieces = raw if loaded is None else loaded.take(raw, len(ranges))
            micro_batches = []
            for where in ranges:
                micro = self.micro_batch(next(pieces), where.start, len(where), rows)
                micro_batches.append(micro if where else as_empty(micro))
            batch = self.batch(micro_batches, (epoch, first, end), ends_epoch=ends_epoch)
            yield batch._replace(samples=end - first) if self.shared else batch

    def epoch_order(self, epoch: int) -> Tensor | None:
        """Return the index of the sample at each position of an epoch; None is as stored."""
        if self.order is not None:
            return self.order.indices(self.seed, epoch, self.layout.batch_size)
        if not self.shuffle:
            return None
        assert self.layout.samples is not None
        return epoch_permutation(self.layout.samples, self.seed, epoch)

    def _read_stream(self, stream: StreamLoader, epoch: int, start: int) -> Iterator[Batch]:
        for pieces, (first, end), ends_epoch in stream.batches(epoch, start):
            micro_batches = []
            for raw, position, samples in pieces:
                micro = self.micro_batch(raw, position, samples)
                micro_batches.append(micro if samples else as_empty(micro))
            batch = self.batch(micro_batches, (epoch, first, end), ends_epoch=ends_epoch)
            yield batch._replace(samples=end - first) if self.shared else batch

    def batch(
        self,
        micro_batches: list[MicroBatch],
        place: tuple[int, int, int],
        *,
        ends_epoch: bool = False,
    ) -> Batch:
        """Put micro-batches together, with the items of the whole, at (epoch, position, end)."""
        items, samples = 0.0, 0
        for each in micro_batches:
            items += each.items
            samples += each.samples
        whole = Batch(tuple(micro_batches), items, samples, *place, ends_epoch)
        return (
            whole._replace(part_items=sum_part_items(micro_batches))
            if self.loss.components
            else whole
        )

    def micro_batch(
        self, raw: Any, position: int, samples: int, rows: NDArray[np.int64] | None = None
    ) -> MicroBatch:
        """Tell inputs from targets and count the items.

        Args:
            raw: the batch as it was read.
            position: of its first sample.
            samples: in it.
            rows: of data in memory, the sample at each position of the epoch.
        """
        if self._is_plain and type(raw) is tuple:
            args, targets, kwargs = raw[:-1], raw[-1], _NOTHING
        else:
            args, kwargs, targets = self.split(raw)
        if self.loss.components:
            micro = MicroBatch(args, kwargs, targets, 0, samples, position)
            return with_items(micro._replace(is_ready=self.is_ready), self.loss, raw)
        uniform = self._uniform
        if uniform is None or rows is None or not samples:
            items = self.loss.items(raw, targets)
        elif uniform.labels is None:
            is_same = uniform.version == uniform.targets._version
            items = samples * uniform.items if is_same else self.loss.items(raw, targets)
        elif (
            uniform.labels[rows[position : position + samples]].min() >= 0
            and uniform.address == uniform.targets.data_ptr()
        ):
            items = samples * uniform.items
        else:  # the memory was written to since the data was opened
            items = self.loss.items(raw, targets)
        micro = MicroBatch(args, kwargs, targets, items, samples, position)
        return micro._replace(is_ready=True) if self.is_ready else micro

    def first(self) -> tuple[Any, MicroBatch]:
        """Return a micro-batch that has items, as read and moved: the first one, if it has some.

        This rank's share of the first batch is read first; then the first batches of all ranks.

        Raises:
            DataError: none of the first batches has items.
        """
        for read in (self._share_of_first(), self._first_batches()):
            for raw, position, samples in read:
                check_targets(self.split(raw)[2], self.loss.kind)
                micro = self.micro_batch(raw, position, samples)
                if samples and micro.items:
                    rows = micro.rows
                    return raw, self.move_micro(micro._replace(samples=rows, is_ready=False))
        raise DataError(
            f"The first batches have no items (up to {FIRST_BATCHES} were read): every target is "
            "ignored, or its class weights are 0. Look at ignore_index and the targets."
        )

    def first_samples(self, count: int) -> tuple[Any, MicroBatch] | None:
        """Return the first samples of the first epoch in one batch, as read and moved.

        None where they are not read one by one: of a stream, of data that comes in batches, or
        shared out among ranks.
        """
        if isinstance(self.source, StreamLoader) or self.is_ready or self.shared:
            return None
        stop = min(count, len(self.source) if self.layout.samples is None else self.layout.samples)
        for raw in self.source.read(0, self.epoch_order(0), [range(stop)]):
            micro = self.micro_batch(raw, 0, stop)
            return (raw, self.move_micro(micro)) if micro.items else None
        return None

    def _share_of_first(self) -> Iterator[tuple[Any, int, int]]:
        """Yield the micro-batches of this rank's share of the first batch."""
        return self._pieces(self.source, self.layout, 1)

    def _first_batches(self) -> Iterator[tuple[Any, int, int]]:
        """Yield the micro-batches of the first batches, with the shares of all ranks."""
        cut = self.layout._replace(full=True)
        source = self.source if self._open_with is None else self._open_with(cut)
        try:
            yield from self._pieces(source, cut, FIRST_BATCHES)
        finally:
            if source is not self.source:
                source.close()

    def _pieces(
        self, source: Source | StreamLoader, cut: BatchLayout, count: int
    ) -> Iterator[tuple[Any, int, int]]:
        """Yield (as read, position, samples) of the micro-batches of the first batches."""
        if isinstance(source, StreamLoader):
            for pieces, *_ in islice(source.batches(0, 0), count):
                yield from pieces
            return
        batches = islice(cut.batches(0), count)
        where = [
            range(*each) for first, end, _ in batches for each in cut.micro_batches(first, end)
        ]
        read = source.read(0, self.epoch_order(0), map(positions_or_dummy, where))
        for raw, positions in zip(read, where, strict=True):
            yield raw, positions.start, len(positions)

    def close(self) -> None:
        """Let the workers go."""
        self.source.close()

    def make_micro_batch(self, raw: Any, position: int) -> MicroBatch:
        """Take a batch of the user's own, whose items nobody has counted."""
        args, kwargs, targets = self.split(raw)
        in_lists = self.loss.is_in_training_only
        samples = self.loss.count(targets) if in_lists else batch_size_of(raw)
        micro = MicroBatch(args, kwargs, targets, 0, samples, position)
        return with_items(micro, self.loss, raw)

    def make_batch(self, raws: Iterable[Any], place: tuple[int, int, int]) -> Batch:
        """Take batches of the user's own as the micro-batches of one."""
        cut: list[MicroBatch] = []
        for raw in raws:
            cut.append(self.make_micro_batch(raw, sum(each.samples for each in cut)))
        return self.batch(cut, place)

    def move(self, batch: Batch) -> Batch:
        """Copy a batch to the device."""
        return batch._replace(micro_batches=tuple(map(self.move_micro, batch.micro_batches)))

    def move_micro(self, micro: MicroBatch) -> MicroBatch:
        """Copy a micro-batch to the device."""
        if self.device.type == "cpu":
            return micro
        whole = (micro.args, dict(micro.kwargs), micro.targets)
        if self.pin:
            whole = map_tensors(whole, _pinned)
        args, kwargs, targets = move(whole, self.device)
        return micro._replace(args=args, kwargs=kwargs, targets=targets)

    def _moved_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Copy the next batch, on a stream of its own, while the step of this one runs.

        The caching allocator must not hand a copied tensor's memory out again before the step has
        used it, hence record_stream.
        Source: https://docs.pytorch.org/docs/stable/generated/torch.Tensor.record_stream.html
        """
        stream = torch.cuda.Stream(self.device)
        waiting: tuple[Batch, torch.cuda.Event] | None = None
        for batch in batches:
            with torch.cuda.stream(stream):
                moved = (self.move(batch), stream.record_event())
            if waiting is not None:
                yield self._arrived(*waiting)
            waiting = moved
        if waiting is not None:
            yield self._arrived(*waiting)

    def _arrived(self, batch: Batch, copied: torch.cuda.Event) -> Batch:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(copied)
        for micro in batch.micro_batches:
            for tensor in flatten_tensors((micro.args, dict(micro.kwargs), micro.targets)):
                tensor.record_stream(current)
        return batch


def make_loader(
    data: Any, part: str, *, task: Task, loss: Loss, plan: Plan, training: bool = False
) -> BatchLoader:
    """Make the feed of a part of the data, to train on or to measure: then whole and in order.

    Raises:
        DataError: of no known kind, or empty, or a DataLoader to measure with a sampler of its own.
    """
    if isinstance(data, NoData):
        task, loss = replace(task, inputs=lambda _: ((), None)), items_only_loss(lambda _: 1.0)
    if training and loss.is_in_training_only:
        task = replace(task, inputs=partial(inputs_with_targets, task.split_batch))
    if part != "train":
        check_no_sampler(data, part)
    own = loader_settings(data)
    size = plan.batch_size if training else plan.validation_batch_size
    if own is not None and not training:
        size = own["batch_size"] or size
    shuffle = training and plan.data_shuffle
    order = filter_order(task.sampler, plan.exclude_samples, shuffle=shuffle) if training else None
    transform = make_batch_transform(task, loss, plan) if training else None
    cut = BatchLayout(
        samples=count_samples(data, part) if order is None else len(order),
        batch_size=size if training else size * plan.parallel_ranks,
        micro_batch_size=plan.micro_batch_size if training else size,
        drop_last=training and plan.data_drop_last,
        rank=plan.parallel_rank,
        ranks=plan.parallel_ranks,
        full=transform is not None,
        limit=_limit_of(plan, training=training, is_val=part in task.val_sets()),
    )
    opened = partial(make_source, data, part, task=task, plan=plan, training=training)
    return BatchLoader(
        opened(cut),
        cut,
        part=part,
        task=task,
        loss=loss,
        plan=plan,
        shuffle=shuffle,
        order=order,
        transform=transform,
        open_with=opened,
    )


def _limit_of(plan: Plan, *, training: bool, is_val: bool) -> int | None:
    """Return how many batches of a part are used; None is all.

    What is measured of the training or test data on request is measured on all of it.
    """
    limit: int | None = plan.limit_train_batches if training else plan.limit_val_batches
    return limit if training or is_val else None


class _Uniform(NamedTuple):
    """Targets in memory of which each sample has as many items as any other.

    Attributes:
        items: of each sample.
        targets: all of them.
        labels: the same memory as an array: numpy may write to it too, which changes no version of
            a tensor. None where targets are probabilities, or not on the host.
        version: of the targets when they were looked at.
        address: of their memory then.
        chosen: the samples that are used; None for all.
    """

    items: float
    targets: Tensor
    labels: NDArray[Any] | None
    version: int
    address: int
    chosen: Tensor | None

    def rows(self, order: Tensor | None) -> NDArray[np.int64]:
        """Return the row of the targets at each position of an epoch."""
        if order is None:
            found = torch.arange(len(self.targets)) if self.chosen is None else self.chosen
        else:
            found = order if self.chosen is None else self.chosen[order]
        return found.cpu().numpy()


def _uniform_items(source: Source | StreamLoader, task: Task, loss: Loss) -> _Uniform | None:
    """Return the items of each sample, where a look at all targets in memory shows them equal.

    Counting unmasked targets costs two small operations a batch; one look before the start saves
    them all where nothing is masked, but for the lowest label of each batch.
    """
    if not isinstance(source, InMemory) or task.inputs is not None or loss.kind != "classes":
        return None
    if getattr(loss.module, "weight", None) is not None:
        return None
    targets = task.split_batch(source.tensors)[2]
    if not isinstance(targets, Tensor) or loss.items(source.tensors, targets) != targets.numel():
        return None
    labels = None
    if not targets.is_floating_point() and targets.device.type == "cpu":
        if getattr(loss.module, "ignore_index", IGNORED) >= 0:  # the lowest label tells nothing
            return None
        labels = targets.numpy()
    each = targets.numel() / len(targets)
    version, address = targets._version, targets.data_ptr()
    return _Uniform(each, targets, labels, version, address, source.index)


def _pinned(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor
