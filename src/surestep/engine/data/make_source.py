"""Make the source of one split of the data, and find its seeds and its fingerprint."""

from collections.abc import Collection
from typing import Any

from torch.utils.data import DataLoader

from surestep.base.warn import warn
from surestep.engine.batch import only_element
from surestep.engine.data.batched import NoData
from surestep.engine.data.dataset import (
    count_samples,
    dataset_of,
    find_collate,
    in_memory,
    unwrap_loader,
)
from surestep.engine.data.sources import (
    InMemory,
    MapStyleSource,
    Source,
    batched_getter,
    find_with_epoch,
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
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.plan.batching import BatchLayout
from surestep.engine.plan.not_checked import not_checked
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task

LOADED = 5  # samples of a dataset in its fingerprint: the first, the last, and three between
IN_MEMORY = 1024  # rows of tensors in their fingerprint
_PLAN_OPTIONS = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_LOADER_OPTIONS = ("timeout", "worker_init_fn", "multiprocessing_context")


def make_source(
    data: Any,
    part: str,
    layout: BatchLayout,
    *,
    task: Task,
    plan: Plan,
    training: bool,
    counts: bool = False,
) -> Source | StreamLoader:
    """Return the source of a split, to train on or to measure.

    With `counts`, batches whose samples can be counted are each a CollatedBatch.
    """
    dataset = dataset_of(data, part)
    options = {name: getattr(plan, f"data_{name}") for name in _PLAN_OPTIONS}
    if isinstance(data, DataLoader):
        own = () if training else _PLAN_OPTIONS  # to measure, it loads with its own settings
        options |= {name: getattr(data, name) for name in (*own, *_LOADER_OPTIONS)}
    collate = find_collate(data, task)
    if not is_stream(data):
        if (
            isinstance(dataset, InMemory)
            and is_in_memory(data, task)
            and not options["num_workers"]
        ):
            return dataset
        return MapStyleSource(
            dataset,
            seed=plan.seed,
            collate=collate,
            options=options,
            part=part,
            with_epoch=_with_epoch(dataset, part, task),
            counts=counts,
            decoded=_open_decoded(plan),
        )
    if not training and (part == "train" or not isinstance(data, DataLoader)):
        # Several workers would each need their own shard, and no one asked for several.
        options["num_workers"] = min(options["num_workers"], 1)
    buffer = plan.data_shuffle_buffer if training else None
    is_ready = collate is only_element
    reader = StreamReader(dataset, plan.seed, part, buffer, counts=counts and is_ready)
    saves = training and plan.data_resume == BY_STATE
    stream = StreamLoader(
        reader,
        layout,
        part=part,
        collate=collate,
        options=options,
        saves_state=saves,
        records=training and not isinstance(dataset, NoData),
        counts=counts and collate is not None and not is_ready,
    )
    if training:
        check_repeats(reader, part)
    elif part not in ("train", "test") and not peek(dataset, 1):
        raise empty_stream_error(part)
    return stream


def _open_decoded(plan: Plan) -> Any:
    """Return the store of decoded images, if images are kept."""
    if plan.data_decoded_bytes is None:
        return None
    from surestep.engine.data.decoded_images import DecodedImages  # it imports Pillow

    return DecodedImages(plan.data_decoded_bytes)


def _with_epoch(dataset: Any, part: str, task: Task) -> list[Any]:
    """Return the datasets whose epoch is set: of the training data, also in another split.

    What that split reads would else depend on the epoch that this process loaded last.
    """
    found = find_with_epoch(dataset)
    if part == "train" or not found:
        return found
    trained = find_with_epoch(dataset_of(task.train, "train"))
    return [one for one in found if any(one is other for other in trained)]


def is_in_memory(data: Any, task: Task) -> bool:
    """Return whether the data is plain tensors that no workers slice."""
    return _plain_tensors(data, task) is not None and not getattr(data, "num_workers", 0)


def _plain_tensors(data: Any, task: Task) -> InMemory | None:
    """Return data that is tensors in memory with torch's default collation."""
    return in_memory(unwrap_loader(data)) if find_collate(data, task) is None else None


def describe_randomness(task: Task) -> tuple[str, str]:
    """Return how the loading of the training data is seeded, and the reason, for the Plan.

    Raises:
        DataError: it is empty or of an unknown kind.
    """
    if is_in_memory(task.train, task):
        return "none", "slicing tensors in memory draws no random numbers"
    if is_stream(task.train):
        return (
            "by position in the stream",
            "each sample is read with a seed of its position in the stream",
        )
    dataset = dataset_of(task.train, "train")
    collate = find_collate(task.train, task)
    found = OwnGenerators(("dataset", dataset), ("collate_fn", collate)).found
    for rng in found:
        if rng.seed is None:
            return "not exact", (
                f"{rng} takes no seed, so no run over it can be repeated or resumed exactly; draw "
                "from random.Random()"
            )
    own = f"; own generators too: {', '.join(map(str, found))}" if found else ""
    many = {"__getitems__": batched_getter(dataset), "collate_fn": collate}
    drawing = [name for name, function in many.items() if function is not None]
    if not drawing:
        return "by position", f"the same for any number of workers and any split{own}"
    verb = "draws" if len(drawing) == 1 else "draw"
    return "by first position", (
        f"{' and '.join(drawing)} {verb} by the first position of the micro-batch: the same for "
        f"any number of workers, not for another micro_batch_size{own}"
    )


def probe_indices(samples: int, count: int) -> list[int]:
    """Return indices spread over the data, with the first and the last."""
    if samples <= count:
        return list(range(samples))
    return sorted({round(step * (samples - 1) / (count - 1)) for step in range(count)})


def dataset_fingerprint(
    data: Any, part: str, *, task: Task, plan: Plan, also: Collection[int] = ()
) -> str | None:
    """Return a digest of some samples of a map-style split; None if they are never the same.

    They are spread over the split, and those of the indices in `also` are added.

    They are loaded under the seeds of their positions, with the seed 0, so random augmentation
    gives the same digest in every process. If there are workers, one of them loads: a dataset may
    open its files in the process that loads first.
    """
    samples = count_samples(data, part)
    assert samples is not None
    memory = _plain_tensors(data, task)
    if memory is not None:  # the same for any number of workers
        return digest(memory.batch(sorted({*probe_indices(samples, IN_MEMORY), *also})))
    one = plan.replace(
        seed=0,
        data_num_workers=min(max(plan.data_num_workers, getattr(data, "num_workers", 0)), 1),
        data_persistent_workers=False,
        data_pin_memory=False,
    )
    layout = BatchLayout(samples, 1, 1)
    source = make_source(data, part, layout, task=task, plan=one, training=True)
    assert not isinstance(source, StreamLoader)
    indices = sorted({*probe_indices(samples, LOADED), *also})
    ranges = [range(index, index + 1) for index in indices]
    try:
        found = [digest(batch) for batch in source.read(0, None, ranges * 2)]
    except Exception as error:  # of the user's dataset; the first batch reports it
        not_checked(f"the samples of {part}", f"they cannot be read: {error}")
        return None
    finally:
        source.close()
    first, again = found[: len(ranges)], found[len(ranges) :]
    if first == again:
        return digest(first)
    then = (
        "a resumed run, or one with other workers, reads other samples"
        if part == "train"
        else "its evaluations are of different samples, and a best one says little"
    )
    warn(
        f"The {part} data gives other samples when it is read again, although all generators that "
        "were found are seeded for each sample. It may have a counter, an iterator or a generator "
        f"that it makes for each sample. So {then}. Compute a sample from its index, or give the "
        "dataset a method set_sample_seed(seed)."
    )
    not_checked(f"the samples of {part}", "they differ when they are read again")
    return None
