"""How the data is split, ordered and loaded, and how long the run is."""

import math
from typing import Any

from surestep.engine.data.stream_state import BY_STATE
from surestep.engine.plan.batching import BatchLayout, find_single
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.rule import rule

_BATCHED = "the data comes in batches (Task(batched=True))"


def _of_loader(k: PlanContext) -> Decision | None:
    """Return the setting of the Task's DataLoader; None if it has no such setting."""
    name = k.option.removeprefix("data.")
    given = None if k.task_info.loader is None else k.task_info.loader[name]
    if given is None:
        return None
    wanted = k.get(k.option, given)
    if wanted != given:
        k.reject(
            f"{k.option}={wanted!r}, but Task(train=...) is a DataLoader with {name}={given!r}. "
            f"Set it in one place: leave {k.option} out, or pass the dataset."
        )
    return given, "the DataLoader's own"


def _loader_or(k: PlanContext, value: Any, reason: str) -> Decision:
    return _of_loader(k) or k.set_or(value, reason)


@rule("loss")
def loss(k: PlanContext) -> Decision:
    """Name the loss and what it is divided by."""
    return k.task_info.loss, k.task_info.loss_reason


@rule("batch_size")
def batch_size(k: PlanContext) -> Decision:
    """Use the size of the loader, or 64."""
    ranks = k["parallel.ranks"]
    given = _of_loader(k)
    if given is not None:
        size, reason = given
        return (size * ranks, f"{reason}, on each of {ranks} ranks") if ranks > 1 else given
    if k.task_info.no_data:
        return k.set_or(ranks, "no training data: each rank takes the step by itself")
    if k.task_info.batched:
        return k.set_or(ranks, f"{_BATCHED}: one for each rank")
    return k.set_or(64, "not set: a size that trains most small models")


@rule("micro_batch_size")
def micro_batch_size(k: PlanContext) -> Decision:
    """Take all that a rank has of a batch at once."""
    size = k.get("micro_batch_size", 1)
    if k.task_info.batched:
        if size != 1:
            k.reject(
                f"micro_batch_size={size}, but {_BATCHED}, which are not split or joined. Leave it "
                "out."
            )
        return 1, f"{_BATCHED}, which are not split"
    if size > k["batch_size"]:
        k.reject(
            f"micro_batch_size={size} is larger than the batch of {k['batch_size']}. Use at most "
            f"{k['batch_size']}, or a larger batch_size."
        )
    if k["parallel.ranks"] > 1:
        return k.set_or(_rank_share(k), "not set: all samples that a rank has of a batch")
    return k.set_or(k["batch_size"], "not set: the full batch at once")


def _rank_share(k: PlanContext) -> int:
    """Return the most samples of a batch that one rank has."""
    return -(-int(k["batch_size"]) // int(k["parallel.ranks"]))


@rule("batch_layout")
def batch_layout(k: PlanContext) -> Decision:
    """Show how a batch is split over ranks and micro-batches."""
    ranks, size, micro = k["parallel.ranks"], k["batch_size"], k["micro_batch_size"]
    if ranks <= size <= micro:
        return f"{size} = 1 micro-batch", "not split"
    share = _rank_share(k)
    full, rest = divmod(share, micro)
    parts = f"{full} micro-batches x {micro}" if full > 1 else f"1 micro-batch x {micro}"
    parts += f" + {rest}" if rest else ""
    most = "" if size % ranks == 0 else "at most "
    shares = f"{ranks} ranks x {most}{f'({parts})' if rest else parts}" if ranks > 1 else parts
    layout = f"{size} = {shares}"
    if size < ranks:
        return layout, f"ranks past the first {size} get no data: set batch_size={ranks}"
    if k.task_info.not_splitting:
        return layout, f"splitting changes the numbers here: {k.task_info.not_splitting[0]}"
    return layout, "the same update as without splitting"


@rule("data.shuffle")
def shuffle(k: PlanContext) -> Decision:
    """Shuffle, unless the data has an order of its own."""
    sampler, wanted = k.task_info.order, k.get("data.shuffle")
    if sampler is not None:
        if wanted is not None:
            k.reject(
                f"data.shuffle={wanted} is set, but the Task has the sampler {sampler.name!r}. "
                "Leave data.shuffle out, or leave Task(sampler=...) out."
            )
        return sampler.name != "sequential", "the Task's sampler decides"
    if k.task_info.is_stream:
        if wanted:
            k.reject(
                "data.shuffle=True needs samples with positions, and the training data is a "
                "stream. Use data.shuffle_buffer=1000, which draws from that many samples."
            )
        return k.set_or(False, "a stream has its own order")
    reason = "ordered data trains worse; the order is a function of (seed, epoch)"
    return _loader_or(k, True, reason)


@rule("data.shuffle_buffer")
def shuffle_buffer(k: PlanContext) -> Decision:
    """Shuffle a stream if it is set."""
    if k.task_info.is_stream:
        return k.set_or(None, "not set: the stream keeps its own order")
    if k.is_set("data.shuffle_buffer"):
        k.reject(
            f"data.shuffle_buffer={k.get('data.shuffle_buffer')} is for streams, and the training "
            "data has positions. Use data.shuffle=True, which shuffles all of it."
        )
    return None, "the data is not a stream: data.shuffle shuffles all of it"


@rule("data.drop_last")
def drop_last(k: PlanContext) -> Decision:
    """Keep the smaller last batch, and warn if BatchNorm cannot compute on it."""
    given = _of_loader(k)
    if given is not None:
        return given
    if k.task_info.batch_norm and not k.task_info.batched:
        sizes = k["batch_size"], k["micro_batch_size"]
        layout = BatchLayout(k.task_info.train_samples, *sizes, ranks=k["parallel.ranks"])
        single = find_single(layout, None)
        if single is not None and single.samples_left is not None:
            return k.set_or(
                False,
                "no sample is lost; but the last batch ends in a forward of 1 sample, and a "
                "BatchNorm layer that gets 1 value per channel from it raises an error: set "
                "data.drop_last=True",
            )
    return k.set_or(False, "a smaller last batch is weighted correctly: no sample is lost")


def _on_every_rank(k: PlanContext, reason: str) -> str:
    """Complete the reason of what several ranks share only if each reads all of it."""
    ranks = k.system.launched.size
    if ranks == 1:
        return reason
    return f"{reason}; each of {ranks} ranks loads all of it, and keeps its share"


@rule("data.sampler")
def sampler(k: PlanContext) -> Decision:
    """Name the order of the samples."""
    own = k.task_info.order
    if own is not None:
        sizes = k["batch_size"], k["micro_batch_size"]
        layout = BatchLayout(k.task_info.train_samples, *sizes, k["data.drop_last"])
        return own.name, own.explain(layout, k["seed"])
    if k.task_info.is_stream:
        reason = "samples come as the stream yields them; data.shuffle_buffer shuffles"
        return "the stream's", _on_every_rank(k, reason)
    if k["data.shuffle"]:
        return "shuffled", "each sample once: data.shuffle"
    return "sequential", "each sample once, as stored: data.shuffle is off"


@rule("batch_transform")
def batch_transform(k: PlanContext) -> Decision:
    """Name the transform of the Task."""
    own = k.task_info.batch_transform
    if own is None:
        return None, "the Task has none"
    return own, _on_every_rank(k, "the Task's: of each global batch in training, seeded by step")


@rule("exclude_samples")
def exclude_samples(k: PlanContext) -> Decision:
    """Exclude the samples that are set."""
    if k.is_set("exclude_samples") and k.task_info.is_stream:
        k.reject(
            "exclude_samples names samples by index, and the training data is a stream, whose "
            "samples have none. Exclude them in the stream itself."
        )
    skips = k.task_info.skips
    if skips is None:
        return None, "every sample is trained on"
    source = f", {skips.source}" if skips.source else ""
    return skips, f"excluded by index, set {k.origin('exclude_samples')}{source}"


@rule("data.randomness")
def randomness(k: PlanContext) -> Decision:
    """Tell how the randomness of loading is seeded."""
    draws = k.task_info.draws
    if draws.unseeded:
        return "not exact", (
            f"{draws.unseeded[0]} takes no seed, so no run over it can be repeated or resumed "
            "exactly; draw from random.Random()"
        )
    if draws.sliced:
        return "none", "tensors in memory are sliced: nothing is drawn"
    if k.task_info.is_stream:
        return "by place", "each sample is read with a seed of its position in the stream"
    if draws.together:
        return "by first position", (
            f"{draws.what} by the first position of the micro-batch: the same for any number of "
            f"workers, not for another micro_batch_size{draws.also}"
        )
    return "by position", f"the same for any number of workers and any split{draws.also}"


@rule("data.resume")
def resume(k: PlanContext) -> Decision:
    """Tell how a run resumes in the data."""
    if not k.task_info.is_stream:
        return "by position", "no sample is loaded again"
    if k["data.shuffle_buffer"] is not None:
        reason = "the samples in data.shuffle_buffer are not in the stream's state"
        return "by reading again", reason
    if k.task_info.why_read_again:
        return "by reading again", k.task_info.why_read_again
    return BY_STATE, "the stream's own: tried on its first samples"


@rule("data.num_workers")
def num_workers(k: PlanContext) -> Decision:
    """Load beside a GPU, if there is anything to load."""
    if k.task_info.in_memory:
        return _loader_or(k, 0, "the data is in memory and only sliced")
    if not k.on_gpu:
        return _loader_or(k, 0, "on a CPU the step itself uses the cores")
    if k.task_info.is_stream:
        reason = "loading beside the GPU; more workers would each need a part of the stream"
        return _loader_or(k, 1, reason)
    count = min(4, max(1, k.system.cpus - 1))
    reason = f"loading beside the GPU; {k.system.cpus} cores here"
    return _loader_or(k, count, reason)


@rule("data.pin_memory")
def pin_memory(k: PlanContext) -> Decision:
    """Pin memory for a GPU."""
    if k.on_gpu:
        return _loader_or(k, True, "copies to the GPU need not wait for the host")
    return _loader_or(k, False, "nothing is copied to a GPU")


@rule("data.persistent_workers")
def persistent_workers(k: PlanContext) -> Decision:
    """Keep workers."""
    if k["data.num_workers"] > 0:
        return _loader_or(k, True, "starting workers in each epoch costs seconds")
    return _loader_or(k, False, "no workers")


@rule("data.prefetch_factor")
def prefetch_factor(k: PlanContext) -> Decision:
    """Load two micro-batches ahead."""
    if k["data.num_workers"] > 0:
        return _loader_or(k, 2, "torch's default")
    return _loader_or(k, None, "no workers")


@rule("steps_per_epoch")
def steps_per_epoch(k: PlanContext) -> Decision:
    """Count the batches of an epoch."""
    samples, size = k.task_info.train_samples, int(k["batch_size"])
    if samples is None:
        return None, "the training data is a stream without a length"
    steps = samples // size if k["data.drop_last"] else math.ceil(samples / size)
    limit = k["limit_train_batches"]
    if steps == 0:
        k.reject(
            f"data.drop_last drops every batch: {samples} samples are less than "
            f"batch_size={size}. Use a smaller batch_size or drop_last=False."
        )
    reason = f"{samples} samples in batches of {size}"
    return (steps if limit is None else min(steps, limit)), reason


@rule("total_steps")
def total_steps(k: PlanContext) -> Decision:
    """Count the steps of the run."""
    if k.is_set("max_steps"):
        return k.get("max_steps"), f"set {k.origin('max_steps')}"
    if not k.is_set("epochs"):
        k.reject("The length of the run is not set. Set epochs=10 or max_steps=1000.")
        return None, ""
    epochs, steps = k.get("epochs"), k["steps_per_epoch"]
    if k.task_info.no_data:
        k.reject(
            f"epochs={epochs:g} needs training data, and the Task has none. Set max_steps=1000 "
            "instead."
        )
    elif steps is None:
        limit = k["limit_train_batches"]
        example = 1000 if limit is None else max(1, round(epochs * limit))
        k.reject(
            f"epochs={epochs:g} needs a length of the training data, and it is a stream without "
            f"one. Set max_steps={example} instead, or add a __len__ to the stream."
        )
    else:
        reason = f"{epochs:g} epochs of {steps} steps, set {k.origin('epochs')}"
        return max(1, round(epochs * steps)), reason
    return None, ""
