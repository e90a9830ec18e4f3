"""Open one split of the data: its source, the seeds of its loading, and its fingerprint."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset, default_collate

from surestep.engine.data.dataloader import loader_settings, unsupported_loader_options
from surestep.engine.data.dataset import (
    as_samples,
    count_samples,
    dataset_of,
    in_memory,
    unwrap_loader,
)
from surestep.engine.data.sources import (
    InMemory,
    MapStyleSource,
    Source,
    batched_getter,
    identity_collate,
)
from surestep.engine.data.stream import (
    StreamReader,
    check_repeats,
    digest,
    empty_stream_error,
    is_stream,
    peek,
)
from surestep.engine.data.stream_loader import StreamLoader
from surestep.engine.data.stream_state import BY_STATE
from surestep.engine.generators import DatasetRNG, DatasetRNGs, LoadingSeedInfo
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task

LOADED = 5  # samples of a dataset in its fingerprint: the first, the last, and three between
IN_MEMORY = 1024  # rows of tensors in their fingerprint


def make_source(
    data: Any, part: str, layout: BatchLayout, *, task: Task, plan: Plan, training: bool
) -> Source | StreamLoader:
    """Return the source of a split, to train on or to measure.

    Raises:
        DataError: of an unknown kind, empty, or a stream that does not repeat or cannot be sharded.
    """
    dataset = dataset_of(data, part)
    own = None if training else loader_settings(data)
    options: dict[str, Any] = {
        "num_workers": plan.data_num_workers,
        "pin_memory": plan.data_pin_memory,
        "persistent_workers": plan.data_persistent_workers,
        "prefetch_factor": plan.data_prefetch_factor,
    }
    if own is not None:  # a DataLoader to measure by loads with its own settings
        options = {name: own[name] for name in options}
    options |= unsupported_loader_options(data)
    collate = task.collate_fn or getattr(data, "collate_fn", None)
    if not is_stream(data):
        memory = in_memory(dataset)
        if memory is not None and is_in_memory(data, task) and not options["num_workers"]:
            return memory
        if memory is not None and memory.index is None and collate is None:
            dataset, collate = memory, identity_collate
        return MapStyleSource(
            as_samples(dataset), seed=plan.seed, collate=collate, options=options, part=part
        )
    if not training and (own is None or part == "train"):
        # Several workers would each need their own shard, and no one asked for several.
        options["num_workers"] = min(options["num_workers"], 1)
    reader = StreamReader(dataset, plan.seed, plan.data_shuffle_buffer if training else None)
    saves = training and plan.data_resume == BY_STATE
    stream = StreamLoader(
        reader, layout, part=part, collate=collate, options=options, saves_state=saves
    )
    if training:
        check_repeats(reader, part)
    elif part not in ("train", "test") and not peek(dataset, 1):
        raise empty_stream_error(part)
    return stream


def is_in_memory(data: Any, task: Task) -> bool:
    """Return whether the data is plain tensors that no workers slice."""
    workers = data.num_workers if isinstance(data, DataLoader) else 0
    return _plain_tensors(data, task) is not None and not workers


def _plain_tensors(data: Any, task: Task) -> InMemory | None:
    """Return data that is tensors in memory with torch's default collation."""
    default = DataLoader(TensorDataset(torch.zeros(1))).collate_fn
    if task.collate_fn is not None or getattr(data, "collate_fn", default) is not default:
        return None
    return in_memory(unwrap_loader(data))


def loading_seed_info(task: Task) -> LoadingSeedInfo:
    """Return how the loading of the training data is seeded, for the Plan.

    Raises:
        DataError: it is empty or of an unknown kind.
    """
    if is_in_memory(task.train, task):
        return LoadingSeedInfo(sliced=True)
    if is_stream(task.train):
        return LoadingSeedInfo()
    dataset = dataset_of(task.train, "train")
    collate = task.collate_fn
    if collate is None and isinstance(task.train, DataLoader):
        collate = task.train.collate_fn
    if collate is default_collate:
        collate = None
    together = {"__getitems__": batched_getter(dataset), "collate_fn": collate}
    found = DatasetRNGs(dataset=dataset, collate_fn=collate).found
    return LoadingSeedInfo(
        together=tuple(name for name, function in together.items() if function is not None),
        own=_names(rng for rng in found if rng.seed is not None),
        unseeded=_names(rng for rng in found if rng.seed is None),
    )


def _names(generators: Iterable[DatasetRNG]) -> tuple[str, ...]:
    return tuple(f"{rng.path} ({rng.kind})" for rng in generators)


def probe_indices(samples: int, count: int) -> list[int]:
    """Return indices spread over the data, with the first and the last."""
    if samples <= count:
        return list(range(samples))
    return sorted({round(step * (samples - 1) / (count - 1)) for step in range(count)})


def dataset_fingerprint(data: Any, part: str, *, task: Task, plan: Plan) -> str | None:
    """Return a digest of some samples of a map-style split; None if they are never the same.

    They are loaded under the seeds of their positions, with the seed 0, so random augmentation
    gives the same digest in every process. If there are workers, one of them loads: a dataset may
    open its files in the process that loads first.
    """
    samples = count_samples(data, part)
    assert samples is not None
    memory = _plain_tensors(data, task)
    if memory is not None:  # the same for any number of workers
        rows = torch.tensor(probe_indices(samples, IN_MEMORY))
        return digest(next(memory.read(0, rows, [range(len(rows))])))
    own = loader_settings(data) or {}
    one = plan.replace(
        seed=0,
        data_num_workers=min(max(plan.data_num_workers, own.get("num_workers", 0)), 1),
        data_persistent_workers=False,
        data_pin_memory=False,
    )
    layout = BatchLayout(samples, 1, 1)
    source = make_source(data, part, layout, task=task, plan=one, training=True)
    assert not isinstance(source, StreamLoader)
    ranges = [range(index, index + 1) for index in probe_indices(samples, LOADED)]
    try:
        found = [digest(batch) for batch in source.read(0, None, ranges * 2)]
    except Exception:  # of the user's dataset; the first batch reports it
        return None
    finally:
        source.close()
    first, again = found[: len(ranges)], found[len(ranges) :]
    return digest(first) if first == again else None
