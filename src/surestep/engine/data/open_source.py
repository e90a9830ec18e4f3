"""Open a part of the data: where its samples are, and how they are loaded."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from surestep.engine.data.dataset import (
    as_tensors,
    dataset_of,
    loader_settings,
    unsupported_loader_options,
)
from surestep.engine.data.sources import (
    InMemory,
    MapStyleSource,
    Source,
    TensorRows,
    identity_collate,
)
from surestep.engine.data.stream import (
    StreamReader,
    check_repeats,
    empty_stream_error,
    is_stream,
    peek,
)
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.data.stream_state import BY_STATE
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task


def make_source(
    data: Any, part: str, cut: BatchLayout, *, task: Task, plan: Plan, training: bool
) -> Source | StreamLoader:
    """Return where the samples of a part are, to train on or to measure.

    Raises:
        DataError: of no known kind, or empty, or a stream that cannot be repeated or shared out.
    """
    dataset = dataset_of(data, part)
    own = None if training else loader_settings(data)
    options = _options(data, plan, own=own)
    if not is_stream(data):
        return _source(data, dataset, part, task=task, plan=plan, options=options)
    if not training and (own is None or part == "train"):
        # Nobody asked for more to measure by, and each would need a part that is its own.
        options["num_workers"] = min(options["num_workers"], 1)
    reader = StreamReader(dataset, plan.seed, plan.data_shuffle_buffer if training else None)
    collate = task.collate_fn or getattr(data, "collate_fn", None)
    marks = training and plan.data_resume == BY_STATE
    stream = StreamLoader(reader, cut, part=part, collate=collate, options=options, marks=marks)
    _look_at(reader, part, training=training)
    return stream


def is_in_memory(data: Any, task: Task) -> bool:
    """Say whether the data is sliced in memory: plain tensors, and no workers to slice them."""
    workers = data.num_workers if isinstance(data, DataLoader) else 0
    return plain_tensors(data, task) is not None and not workers


def plain_tensors(data: Any, task: Task) -> InMemory | None:
    """Return data that is tensors, whoever slices them; None with a collate function of its own."""
    plain = not isinstance(data, DataLoader) or _collates_plainly(data)
    found = as_tensors(data.dataset if isinstance(data, DataLoader) else data)
    return InMemory(*found) if plain and task.collate_fn is None and found is not None else None


def _collates_plainly(loader: "DataLoader[Any]") -> bool:
    return loader.collate_fn is DataLoader(TensorDataset(torch.zeros(1))).collate_fn


def _look_at(reader: StreamReader, part: str, *, training: bool) -> None:
    """Find at the start what would end a run later: a stream that is empty or cannot be repeated.

    Data to test on is not looked at before it is asked for, and to measure on the training data
    is to read again what was looked at.
    """
    if training:
        check_repeats(reader, part)
    elif part not in ("train", "test") and not peek(reader.stream, 1):
        raise empty_stream_error(part)


def _options(data: Any, plan: Plan, *, own: dict[str, Any] | None) -> dict[str, Any]:
    """Return how a DataLoader loads; `own` are the settings of one to measure by."""
    options = {
        "num_workers": plan.data_num_workers,
        "pin_memory": plan.data_pin_memory,
        "persistent_workers": plan.data_persistent_workers,
        "prefetch_factor": plan.data_prefetch_factor,
    }
    if own is not None:
        options = {name: own[name] for name in options}
    return options | unsupported_loader_options(data)


def _source(
    data: Any, dataset: Any, part: str, *, task: Task, plan: Plan, options: dict[str, Any]
) -> Source:
    """Return where the samples are."""
    found = as_tensors(dataset)
    in_memory = InMemory(*found) if found is not None else None
    if in_memory is not None and is_in_memory(data, task) and not options["num_workers"]:
        return in_memory
    collate = task.collate_fn or getattr(data, "collate_fn", None)
    if in_memory is not None and in_memory.index is None:
        if collate is None:
            dataset, collate = in_memory, identity_collate
        elif isinstance(dataset, (tuple, dict)):
            dataset = TensorRows(in_memory)
    return MapStyleSource(dataset, seed=plan.seed, collate=collate, options=options, part=part)
