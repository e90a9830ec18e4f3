"""Batches of one split of the data: read, counted, split and moved to the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat, tee
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
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
    samples_of_ready,
    sum_part_items,
)
from surestep.engine.data.apply_transform import BatchTransform
from surestep.engine.data.batched import NoData
from surestep.engine.data.collated import CollatedBatch, batch_of
from surestep.engine.data.dataloader import check_no_sampler, loader_settings
from surestep.engine.data.dataset import count_samples, dataset_of
from surestep.engine.data.failures import check_targets
from surestep.engine.data.lengths import EpochLengths, check_new_length, warn_of_length
from surestep.engine.data.make_source import make_source
from surestep.engine.data.order import FilteredOrder
from surestep.engine.data.samplers.basic import BasicOrder
from surestep.engine.data.seeded_call import SeededCalls
from surestep.engine.data.sources import InMemory, MapStyleSource, Source
from surestep.engine.data.stream_loader import RawBatch, StreamLoader
from surestep.engine.losses.adapt import IGNORED, Loss, items_only_loss
from surestep.engine.losses.follow import get_version
from surestep.engine.losses.model_loss import inputs_with_targets
from surestep.engine.losses.multi import named_losses, with_items
from surestep.engine.plan.batching import BatchLayout, SampleOrder, positions_or_dummy
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import derive_seed
from surestep.engine.task.task import Task

_NOTHING: Mapping[str, Any] = {}
FIRST_BATCHES = 16  # that are read at most, to find one with items


class BatchLoader:
    """Yields batches from a position (epoch, position) on.

    Its loss counts items on the host, before a batch is moved, so no device is read.

    Attributes:
        subset: the name of the data: "train", "val", ...
        transform: what the step applies to a batch first; it is not applied here.
        inputs: seeds Task(inputs=); None if the Task has none.
        is_ready: each element of the data is a batch already.
        leave: called before each measured batch; returns whether to stop.
        retry: called when a data worker died; returns whether to continue with new workers.
        has_ended: a split to measure was read to its end, so it has one.
        measured: how many samples of it, on all ranks, the last evaluation read.
        lengths: of the epochs, in samples; None for a stream.
        report_length: called if an epoch begins with another number of samples than the one before:
            with the epoch, the number before and the number now.
    """

    def __init__(
        self,
        make_source: Callable[..., Source | StreamLoader],
        layout: BatchLayout,
        *,
        part: str,
        task: Task,
        loss: Loss,
        plan: Plan,
        order: SampleOrder,
        transform: BatchTransform | None,
        inputs: SeededCalls | None,
        reread: Callable[[], Any],
        samples: int | None,
    ) -> None:
        self.is_ready = task.collate_fn is only_element
        make_source = partial(make_source, counts=True)
        self.source = make_source(layout)
        self._reread = reread
        self.subset = part
        self._open_source = make_source
        self.layout = layout
        self.split = channels_last(task.split_batch) if plan.channels_last else task.split_batch
        is_plain = task.inputs is None and task.loss is not None and task.loss != "model"
        self._is_plain = is_plain and not plan.channels_last
        self.loss = loss
        self.order = order
        self.transform = transform
        self.inputs = inputs
        self.seed = plan.seed
        self.device = plan.device
        self.pin = plan.data_pin_memory and isinstance(self.source, InMemory)
        self.leave: Callable[[], bool] | None = None
        self.retry: Callable[[WorkerError], bool] | None = None
        self.has_ended, self.measured = False, 0
        is_stream = samples is None or isinstance(self.source, StreamLoader)
        self.lengths = None if is_stream else EpochLengths(samples or 0)
        self.report_length: Callable[[int, int, int], object] = partial(warn_of_length, part)
        self.shared = layout.ranks > 1
        self._options = [one.options for _, one in named_losses(loss) if one.options is not None]
        self._ignored = _ignored_class(loss)
        self._on_device = _same_items(self.source, task, loss)
        self._counts_rows = loss.counts_samples and not (self.is_ready or loss.components)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` from the one at position `start` on."""
        read = self._read(epoch, start) if self.retry is None else self._retried(epoch, start)
        if self.device.type == "cuda":
            return self._moved_ahead(read)
        return read if self.device.type == "cpu" else map(self.move, read)

    def _retried(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches; continue with new workers after one died, if `retry` allows it."""
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
        if not isinstance(self.source, StreamLoader):
            dataset = self._reread()
            if self.source.follow(dataset, epoch):
                self._on_device = None
            self._follow_length(len(dataset), epoch, start)
        for (first, end, is_last, ranges), raws in self._raws(
            self.source, self.layout, epoch, start
        ):
            micro_batches = []
            for where in ranges:
                micro = self.micro_batch(next(raws), where.start, len(where), epoch)
                micro_batches.append(micro if where else as_empty(micro))
            batch = self.batch(micro_batches, (epoch, first, end), ends_epoch=is_last)
            yield batch._replace(samples=end - first) if self.shared else batch

    def _raws(
        self, source: Source | StreamLoader, layout: BatchLayout, epoch: int, start: int
    ) -> Iterator[RawBatch]:
        """Return the span of each batch, with an iterator that reads its micro-batches."""
        if isinstance(source, StreamLoader):
            return source.batches(epoch, start)
        spans, ahead = tee(chain.from_iterable(layout.iter_chunks(start)))
        wanted: Iterable[range] = chain.from_iterable(map(itemgetter(3), ahead))
        if self.shared:
            wanted = map(positions_or_dummy, wanted)
        raws = source.read(epoch, self.epoch_order(epoch), wanted)
        if isinstance(source, MapStyleSource):
            return ((span, source.take(raws, len(span[3]))) for span in spans)
        return zip(spans, repeat(raws), strict=False)

    def epoch_order(self, epoch: int) -> Tensor | None:
        """Return the index of the sample at each position of an epoch; None is the stored order."""
        order = self.order
        if self.lengths is not None and isinstance(order, BasicOrder):
            order = replace(order, count=self.lengths.of(epoch))
        return order.indices(self.seed, epoch, self.layout.batch_size)

    def count_positions(self, epoch: int) -> int | None:
        """Return how many positions an epoch has; None for a stream without a length."""
        if self.lengths is None or not isinstance(self.order, BasicOrder):
            return self.layout.samples
        return self.lengths.of(epoch)

    def _follow_length(self, samples: int, epoch: int, start: int) -> None:
        """Read an epoch with the number of samples at its start; the next one with the new number.

        Raises:
            DataError: samples of this epoch are gone, or the order is for another number.
        """
        assert self.lengths is not None
        before = self.lengths.of(epoch)
        if start and samples < before:
            raise DataError(
                f"Epoch {epoch + 1} began with {before} samples of the {self.subset} data, and "
                f"{samples} are there now, so it cannot be continued at position {start}. Give "
                "the data that it began with; or start another run from the last checkpoint of "
                "this one: from_='RUN@last'."
            )
        if not start and samples != before:
            check_new_length(samples, before, self.order, self.layout)
            self.lengths.change(epoch, samples)
            self.report_length(epoch, before, samples)
        if isinstance(self.order, BasicOrder):
            self.layout = self.layout._replace(samples=self.lengths.of(epoch))

    def batch(
        self,
        micro_batches: list[MicroBatch],
        span: tuple[int, int, int],
        *,
        ends_epoch: bool = False,
    ) -> Batch:
        """Return a batch of micro-batches, which is at (epoch, position, end)."""
        items, samples = 0.0, 0
        for micro in micro_batches:
            items += micro.items
            samples += micro.samples
        found = Batch(tuple(micro_batches), items, samples, *span, ends_epoch)
        if not self.loss.components:
            return found
        return found._replace(part_items=sum_part_items(micro_batches))

    def _split_at(self, raw: Any, epoch: int, position: int) -> tuple[Any, Any, Any]:
        """Split a micro-batch into (args, kwargs, targets), which may draw in `Task(inputs=)`."""
        if self.inputs is None:
            return self.split(raw)
        seed = derive_seed("inputs", self.seed, epoch, position, self.subset)
        with self.inputs.seeded(seed):
            return self.split(raw)

    def micro_batch(self, raw: Any, position: int, samples: int, epoch: int = 0) -> MicroBatch:
        """Split a micro-batch as read into inputs and targets, and count its items."""
        for options in self._options:  # `is_changed`, without calls in each step
            given = options.given
            ids = [*map(id, given.__dict__.values()), *map(id, given._buffers.values())]
            if options.seen != [*ids, *map(get_version, options.tensors)]:
                self._update_loss()
        collated = None
        if type(raw) is CollatedBatch:
            raw, collated = raw
        elif self.is_ready and self.layout.batch_size == 1 and not self.shared:
            collated = _first_size(raw, self.loss)
        if self._is_plain and type(raw) is tuple and len(raw) > 1:
            args, targets, kwargs = raw[:-1], raw[-1], _NOTHING
        else:
            args, kwargs, targets = self._split_at(raw, epoch, position)
        is_classes = self._ignored is not None and isinstance(targets, Tensor)
        if is_classes and targets.dtype is torch.int64 and targets.device.type == "cpu":
            # In numpy, which takes half the time of torch here.
            items: float | None = int(np.count_nonzero(targets.numpy() != self._ignored))
        elif self._on_device is not None and self._on_device.is_unchanged():
            items = samples * self._on_device.items
        elif (
            self._counts_rows
            and collated in (None, samples)
            and type(targets) is Tensor
            and targets.shape[:1] == (samples,)
        ):
            items = samples
        else:
            items = None
        micro = MicroBatch(
            args, kwargs, targets, items or 0, samples, position, (), self.is_ready, collated
        )
        return with_items(micro, self.loss, raw) if items is None else micro

    def first(self) -> tuple[Any, MicroBatch]:
        """Return a micro-batch that has items, as read and as moved: the first one, if it has some.

        This rank's share of the first batch is read first; then the first batches of all ranks.
        """
        own_share = islice(self._raws(self.source, self.layout._replace(limit=1), 0, 0), 1)
        for (*_, ranges), raws in chain(own_share, self._first_of_all_ranks()):
            for where in ranges:
                raw = next(raws)
                check_targets(self._split_at(batch_of(raw), 0, where.start)[2], self.loss.kind)
                micro = self.micro_batch(raw, where.start, len(where))
                if where and micro.items:
                    micro = micro._replace(samples=micro.rows, is_ready=False)
                    return batch_of(raw), self.move_micro(micro)
        raise DataError(
            f"The first batches have no items (up to {FIRST_BATCHES} were read): every target is "
            "ignored, or its class weights are 0. Check ignore_index and the targets."
        )

    def _first_of_all_ranks(self) -> Iterator[RawBatch]:
        limit = min(FIRST_BATCHES, self.layout.limit or FIRST_BATCHES)
        layout = self.layout._replace(full=True)
        source = self._open_source(layout)
        try:
            yield from islice(self._raws(source, layout._replace(limit=limit), 0, 0), limit)
        finally:
            source.close()

    def first_samples(self, count: int) -> tuple[Any, MicroBatch] | None:
        """Return the first samples of the first epoch in one batch, as read and as moved.

        None if they are not read one by one: of a stream, of ready batches, or with several ranks.
        """
        stop = min(count, self.layout.samples or 0)
        if (raw := self.read_samples(range(stop))) is None:
            return None
        micro = self.micro_batch(raw, 0, stop)
        return (batch_of(raw), self.move_micro(micro)) if micro.items else None

    def read_samples(self, positions: range, *, reseeded: bool = False) -> Any:
        """Return samples of the first epoch as one batch as read; None as `first_samples`.

        With `reseeded`, what `collate_fn` draws has a different seed. It may be a CollatedBatch.
        """
        if isinstance(self.source, StreamLoader) or self.is_ready or self.shared:
            return None
        if isinstance(self.source, MapStyleSource):
            return self.source.load(self.epoch_order(0), positions, reseeded=reseeded)
        return next(self.source.read(0, self.epoch_order(0), [positions]))

    def split_into(self, size: int) -> None:
        """Split each batch into micro-batches of this size, from the next read on."""
        self.layout = self.layout._replace(micro_batch_size=size)
        if isinstance(self.source, StreamLoader):
            self.source.split_into(size)

    @property
    def can_collate_again(self) -> bool:
        """Whether a function of the user collates samples, and can be called for fewer of them."""
        is_map_style = isinstance(self.source, MapStyleSource)
        return is_map_style and self.source.collates and not (self.is_ready or self.shared)

    def close(self) -> None:
        """End the workers."""
        self.source.close()

    def make_batch(self, raws: Iterable[Any], span: tuple[int, int, int], step: int) -> Batch:
        """Return one batch whose micro-batches are batches that the user made, for `step`."""
        if any(options.is_changed() for options in self._options):
            self._update_loss()
        found, position, given = list[MicroBatch](), 0, list(raws)
        for raw in given:
            seed = derive_seed("own batch", self.seed, step, position)
            with nullcontext() if self.inputs is None else self.inputs.seeded(seed):
                args, kwargs, targets = self.split(raw)
            in_lists = self.loss.is_in_training_only
            samples = self.loss.count(targets) if in_lists else batch_size_of(raw)
            # How many samples it holds is known as little as of a ready batch.
            micro = MicroBatch(args, kwargs, targets, 0, samples, position, is_ready=True)
            if len(given) == 1:
                size = _first_size(raw, self.loss) or samples_of_ready(micro, is_alone=True)
                micro = micro._replace(collated=size)
            micro = with_items(micro, self.loss, raw)
            found.append(micro._replace(is_ready=False))
            position += samples
        return self.batch(found, span)

    def _update_loss(self) -> None:
        """Follow options of the loss that the user changed."""
        for options in self._options:
            options.update(self.device)
        self._ignored, self._on_device = _ignored_class(self.loss), None

    def move(self, batch: Batch) -> Batch:
        """Copy a batch to the device."""
        return batch._replace(micro_batches=tuple(map(self.move_micro, batch.micro_batches)))

    def move_micro(self, micro: MicroBatch) -> MicroBatch:
        """Copy a micro-batch to the device."""
        if self.device.type == "cpu":
            return micro
        content = (micro.args, dict(micro.kwargs), micro.targets)
        if self.pin:
            content = map_tensors(
                content, lambda x: x.pin_memory() if x.device.type == "cpu" else x
            )
        args, kwargs, targets = move(content, self.device)
        return micro._replace(args=args, kwargs=kwargs, targets=targets)

    def _moved_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Copy the next batch, on a separate CUDA stream, while the step of this one runs.

        With record_stream, the caching allocator reuses a tensor's memory only after the step.
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
    """Return the loader of a split, to train on, or to measure: then all of it in stored order."""
    inputs = seeded_inputs(task, plan)
    if isinstance(data, NoData):
        task, loss = replace(task, inputs=lambda _: ((), None)), items_only_loss(lambda _: 1.0)
    if training and loss.is_in_training_only:
        task = replace(task, inputs=partial(inputs_with_targets, task.split_batch))
    if part != "train":
        check_no_sampler(data, part)
    size = plan.batch_size if training else plan.validation_batch_size
    if not training and (own := loader_settings(data)) is not None:
        size = own["batch_size"] or size
    samples = count_samples(data, part)
    order = task.sampler if training else None
    if order is None:
        order = BasicOrder(training and plan.data_shuffle, samples or 0)
        skips = plan.exclude_samples if training else None
        if skips is not None:  # an order of the Task excludes samples already
            order = FilteredOrder(order, skips, skips.left)
    has_transform = training and task.batch_transform is not None
    transform = BatchTransform(task, loss, plan) if has_transform else None
    limit = plan.limit_train_batches if training else None
    if not training and part in task.val_sets():  # train and test data are measured on all of it
        limit = plan.limit_val_batches
    layout = BatchLayout(
        samples=None if samples is None else len(order),
        batch_size=size if training else size * plan.parallel_ranks,
        micro_batch_size=plan.micro_batch_size if training else size,
        drop_last=training and plan.data_drop_last,
        rank=plan.parallel_rank,
        ranks=plan.parallel_ranks,
        full=transform is not None,
        limit=limit,
    )
    return BatchLoader(
        partial(make_source, data, part, task=task, plan=plan, training=training),
        layout,
        part=part,
        task=task,
        loss=loss,
        plan=plan,
        order=order,
        transform=transform,
        inputs=inputs,
        reread=partial(dataset_of, data, part),
        samples=samples,
    )


def seeded_inputs(task: Task, plan: Plan) -> SeededCalls | None:
    """Return what seeds `Task(inputs=)`, if the Task has it."""
    return None if task.inputs is None else SeededCalls("inputs", task.inputs, plan.device)


def _first_size(raw: Any, loss: Loss) -> int | None:
    """Return the first size of a batch that is alone in a manual step: it weighs nothing there."""
    return batch_size_of(raw) if loss.kind == "none" and loss.counts_samples else None


def _ignored_class(loss: Loss) -> int | None:
    """Return the ignored class of a loss whose items are all other targets, else None."""
    if loss.kind != "classes" or getattr(loss.module, "weight", None) is not None:
        return None
    return int(getattr(loss.module, "ignore_index", IGNORED))


class _SameItems(NamedTuple):
    """Class targets on the device, of which each sample has as many items."""

    items: float
    targets: Tensor
    version: int

    def is_unchanged(self) -> bool:
        return self.targets._version == self.version


def _same_items(source: Source | StreamLoader, task: Task, loss: Loss) -> _SameItems | None:
    """Count the items of targets in the device's memory once: each count waits for the device."""
    if not isinstance(source, InMemory) or task.inputs is not None or _ignored_class(loss) is None:
        return None
    try:
        targets = task.split_batch(source.tensors)[2]
    except DataError:  # data to predict has no targets; an evaluation reports it
        return None
    if not isinstance(targets, Tensor) or targets.device.type == "cpu":
        return None
    if loss.items(source.tensors, targets) != targets.numel():
        return None
    return _SameItems(targets.numel() / len(targets), targets, targets._version)
