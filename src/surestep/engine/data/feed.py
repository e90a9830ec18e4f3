"""The batches of one part of the data: read, counted, cut and moved to the device."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from surestep.base.errors import DataError
from surestep.engine.data.batch import Batch, MicroBatch, move, samples_in, tensors_in
from surestep.engine.data.dataset import (
    check_unsampled,
    dataset_of,
    loader_settings,
    own_options,
    unpack,
)
from surestep.engine.data.order import Cut, Order, order_of
from surestep.engine.data.source import InMemory, Loaded, Rows, Source, as_it_is
from surestep.engine.loss import Loss
from surestep.engine.plan import Plan
from surestep.engine.task import Task

_NOTHING: Mapping[str, Any] = {}


class Feed:
    """Batches by place, from (epoch, position) on.

    Args:
        source: where the samples are.
        cut: how an epoch is cut.
        task: tells inputs from targets.
        loss: counts items, on the host, before anything is moved: no device is read for it.
        plan: device, seed, pinned memory.
        order: which sample stands at each position of an epoch; None is the plain shuffle, or
            as stored where `shuffle` is false.
    """

    def __init__(
        self,
        source: Source,
        cut: Cut,
        *,
        task: Task,
        loss: Loss,
        plan: Plan,
        shuffle: bool,
        order: Order | None = None,
    ) -> None:
        self.source = source
        self.cut = cut
        self.split = task.split
        self._is_plain = task.inputs is None
        self.loss = loss
        self.shuffle = shuffle
        self.order = order
        self.seed = plan.seed
        self.device = plan.device
        self.pin = plan.data_pin_memory and isinstance(source, InMemory)
        self._items_per_sample = _uniform_items(source, task, loss)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of `epoch` from the one at position `start` on."""
        read = self._read(epoch, start)
        return read if self.device.type == "cpu" else self._moved_ahead(read)

    def _read(self, epoch: int, start: int) -> Iterator[Batch]:
        order = self.order_at(epoch)
        cuts = [
            (first, ends_epoch, [range(*each) for each in self.cut.micro_batches(first, end)])
            for first, end, ends_epoch in self.cut.batches(start)
        ]
        raw = self.source.read(epoch, order, [where for _, _, ranges in cuts for where in ranges])
        for first, ends_epoch, ranges in cuts:
            micro_batches = []
            for where in ranges:
                micro_batches.append(self.micro_batch(next(raw), where.start, len(where)))
            end = ranges[-1].stop
            yield self.batch(micro_batches, (epoch, first, end), ends_epoch=ends_epoch)

    def order_at(self, epoch: int) -> Tensor | None:
        """Return the index of the sample at each position of an epoch; None is as stored."""
        if self.order is not None:
            return self.order.at(self.seed, epoch, self.cut.batch_size)
        return order_of(self.cut.samples, self.seed, epoch) if self.shuffle else None

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
        return Batch(tuple(micro_batches), items, samples, *place, ends_epoch)

    def micro_batch(self, raw: Any, position: int, samples: int) -> MicroBatch:
        """Tell inputs from targets and count the items."""
        if self._is_plain and type(raw) is tuple:
            args, targets, kwargs = raw[:-1], raw[-1], _NOTHING
        else:
            args, kwargs, targets = self.split(raw)
        if self._items_per_sample is None:
            items = self.loss.items(raw, targets)
        else:
            items = samples * self._items_per_sample
        return MicroBatch(args, kwargs, targets, items, samples, position)

    def first(self) -> tuple[Any, MicroBatch]:
        """Return the first micro-batch of the first epoch that has items: as read, and moved.

        Raises:
            DataError: the first batch has none.
        """
        where = [range(*each) for each in self.cut.micro_batches(*next(self.cut.batches(0))[:2])]
        order = self.order_at(0)
        for raw, positions in zip(self.source.read(0, order, where), where, strict=True):
            micro = self.micro_batch(raw, positions.start, len(positions))
            if micro.items:
                return raw, self.move_micro(micro)
        raise DataError(
            "The first batch has no items: every target is ignored, or its class weights are 0. "
            "Look at ignore_index and the targets."
        )

    def close(self) -> None:
        """Let the workers go."""
        self.source.close()

    def micro_batch_of(self, raw: Any, position: int) -> MicroBatch:
        """Take a batch of the user's own, whose items nobody has counted."""
        args, kwargs, targets = self.split(raw)
        items = self.loss.items(raw, targets)
        return MicroBatch(args, kwargs, targets, items, samples_in(raw), position)

    def move(self, batch: Batch) -> Batch:
        """Copy a batch to the device."""
        return batch._replace(micro_batches=tuple(map(self.move_micro, batch.micro_batches)))

    def move_micro(self, micro: MicroBatch) -> MicroBatch:
        """Copy a micro-batch to the device."""
        if self.device.type == "cpu":
            return micro
        whole = (micro.args, dict(micro.kwargs), micro.targets)
        if self.pin:
            whole = _pinned(whole)
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
            for tensor in tensors_in((micro.args, dict(micro.kwargs), micro.targets)):
                tensor.record_stream(current)
        return batch


def feed(
    data: Any, part: str, *, task: Task, loss: Loss, plan: Plan, training: bool = False
) -> Feed:
    """Make the feed of a part of the data, to train on or to measure: then whole and in order.

    Raises:
        DataError: not map-style, or empty, or a DataLoader to measure with a sampler of its own.
    """
    if part != "train":
        check_unsampled(data, part)
    dataset = dataset_of(data, part)
    own = loader_settings(data)
    source = _source(data, dataset, task=task, plan=plan, own=None if training else own)
    size = plan.batch_size if training else plan.validation_batch_size
    if own is not None and not training:
        size = own["batch_size"]
    order = task.order if training else None
    cut = Cut(
        samples=len(source) if order is None else len(order),
        batch_size=size,
        micro_batch_size=plan.micro_batch_size if training else size,
        drop_last=training and plan.data_drop_last,
    )
    shuffle = training and plan.data_shuffle
    return Feed(source, cut, task=task, loss=loss, plan=plan, shuffle=shuffle, order=order)


def slices_in_memory(data: Any, task: Task) -> bool:
    """Say whether the data can be sliced in memory: tensors, and nobody's own collate function."""
    plain = not isinstance(data, DataLoader) or (
        data.num_workers == 0 and unpack(data.dataset) is not None and _collates_plainly(data)
    )
    dataset = data.dataset if isinstance(data, DataLoader) else data
    return plain and task.collate_fn is None and unpack(dataset) is not None


def _collates_plainly(loader: "DataLoader[Any]") -> bool:
    return loader.collate_fn is DataLoader(TensorDataset(torch.zeros(1))).collate_fn


def _source(
    data: Any, dataset: Any, *, task: Task, plan: Plan, own: dict[str, Any] | None
) -> Source:
    """Return where the samples are; `own` are the settings of a DataLoader to measure by."""
    options = {
        "num_workers": plan.data_num_workers,
        "pin_memory": plan.data_pin_memory,
        "persistent_workers": plan.data_persistent_workers,
        "prefetch_factor": plan.data_prefetch_factor,
    }
    if own is not None:
        options = {name: own[name] for name in options}
    found = unpack(dataset)
    in_memory = InMemory(*found) if found is not None else None
    if in_memory is not None and slices_in_memory(data, task) and not options["num_workers"]:
        return in_memory
    collate = task.collate_fn or getattr(data, "collate_fn", None)
    if in_memory is not None and in_memory.index is None:
        if collate is None:
            dataset, collate = in_memory, as_it_is
        elif isinstance(dataset, (tuple, dict)):
            dataset = Rows(in_memory)
    options |= own_options(data)
    return Loaded(dataset, seed=plan.seed, collate=collate, options=options)


def _uniform_items(source: Source, task: Task, loss: Loss) -> float | None:
    """Return the items of each sample, where a look at all targets in memory shows them equal.

    Counting unmasked targets costs two small operations a batch; one look before the start saves
    them all where nothing is masked.
    """
    weighted = getattr(loss.value, "weight", None) is not None
    in_memory = isinstance(source, InMemory) and task.inputs is None
    if not isinstance(source, InMemory) or not in_memory or loss.kind != "classes" or weighted:
        return None
    targets = task.split(source.tensors)[2]
    if not isinstance(targets, Tensor) or loss.items(source.tensors, targets) != targets.numel():
        return None
    return targets.numel() / len(targets)


def _pinned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.pin_memory() if value.device.type == "cpu" else value
    if isinstance(value, dict):
        return {key: _pinned(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(_pinned, value))
    return value
