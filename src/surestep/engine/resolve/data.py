"""How the data is split, ordered and loaded, and how long the run is."""

import math
from typing import Any

from surestep.base.text import format_bytes, format_count
from surestep.config.byte_size import parse_bytes
from surestep.engine.data.stream_state import BY_STATE
from surestep.engine.plan.batching import BatchLayout, find_largest_share, find_single
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.plan.fitting import ALL, DROPOUT, FIT
from surestep.engine.plan.plan import TaskInfo

_BATCHED = "the data comes in batches (Task(batched=True))"


def _of_loader(ctx: PlanContext) -> Decision | None:
    """Return the setting of the Task's DataLoader; None if it has no such setting."""
    name = ctx.option.removeprefix("data.")
    given = None if ctx.task_info.loader is None else ctx.task_info.loader[name]
    if given is None:
        return None
    wanted = ctx.get(ctx.option, given)
    if wanted != given:
        ctx.reject(
            f"{ctx.option}={wanted!r}, but Task(train=...) is a DataLoader with {name}={given!r}. "
            f"Set it in one place: leave {ctx.option} out, or pass the dataset."
        )
    return given, "the DataLoader's own"


def _loader_or(ctx: PlanContext, value: Any, reason: str) -> Decision:
    return _of_loader(ctx) or ctx.set_or(value, reason)


@resolves("loss")
def loss(ctx: PlanContext) -> Decision:
    """Name the loss and what it is divided by."""
    return ctx.task_info.loss, ctx.task_info.loss_reason


@resolves("batch_size")
def batch_size(ctx: PlanContext) -> Decision:
    """Use the size of the loader, or 64."""
    ranks = ctx["parallel.ranks"]
    given = _of_loader(ctx)
    if given is not None:
        size, reason = given
        return (size * ranks, f"{reason}, on each of {ranks} ranks") if ranks > 1 else given
    if ctx.task_info.no_data:
        return ctx.set_or(ranks, "no training data: each rank takes the step by itself")
    if ctx.task_info.batched:
        return ctx.set_or(ranks, f"{_BATCHED}: one for each rank")
    return ctx.set_or(64, "not set: a size that trains most small models")


@resolves("micro_batch_size")
def micro_batch_size(ctx: PlanContext) -> Decision:
    """Take all that a rank has of a batch at once."""
    size = ctx.get("micro_batch_size", 1)
    if ctx.task_info.batched:
        if size != 1:
            ctx.reject(
                f"micro_batch_size={size}, but {_BATCHED}, which are not split or joined. Leave it "
                "out."
            )
        return 1, f"{_BATCHED}, which are not split"
    if size == FIT:
        return _fitting_size(ctx)
    if size > ctx["batch_size"]:
        ctx.reject(
            f"micro_batch_size={size} is larger than the batch of {ctx['batch_size']}. Use at most "
            f"{ctx['batch_size']}, or a larger batch_size."
        )
    if ctx["parallel.ranks"] > 1:
        return ctx.set_or(_rank_share(ctx), "not set: all samples that a rank has of a batch")
    return ctx.set_or(ctx["batch_size"], "not set: the full batch at once")


def _fitting_size(ctx: PlanContext) -> Decision:
    """Start with the size that is known to fit, or else with all that a rank has of a batch."""
    if ctx.task_info.own_step:
        ctx.reject(
            "micro_batch_size='fit' takes a step again in smaller micro-batches if memory runs "
            "out, and Task(step=...) may have updated weights by then. Set a number: "
            "micro_batch_size=16."
        )
    if ctx["parallel.strategy"] == "deepspeed":
        ctx.reject(
            "micro_batch_size='fit' may change the size during a run, and DeepSpeed's config has "
            "one size. Set a number: micro_batch_size=16."
        )
    share, found, changes = _rank_share(ctx), ctx.task_info.fitting, why_not_split(ctx.task_info)
    size, why = (share, ALL) if found is None else (min(found.size, share), found.why)
    if changes:
        return size, (
            f"fit: {why}; splitting changes the update here ({changes}), so a step that runs "
            "out of memory ends the run with the size to set"
        )
    if ctx["parallel.ranks"] > 1:
        return size, f"fit: {why}; tried on all ranks before the first step"
    return size, f"fit: {why}; halved when a step runs out of memory, which takes that step again"


def why_not_split(info: TaskInfo) -> str:
    """Return why splitting changes the update by more than dropout masks; "" if it does not."""
    return next((reason for reason in info.not_splitting if reason != DROPOUT), "")


def _rank_share(ctx: PlanContext) -> int:
    return find_largest_share(ctx["batch_size"], ctx["parallel.ranks"])


@resolves("batch_layout")
def batch_layout(ctx: PlanContext) -> Decision:
    """Show how a batch is split over ranks and micro-batches."""
    ranks, size, micro = ctx["parallel.ranks"], ctx["batch_size"], ctx["micro_batch_size"]
    if ranks <= size <= micro:
        return f"{size} = 1 micro-batch", "not split"
    share = _rank_share(ctx)
    full, rest = divmod(share, micro)
    parts = f"{full} micro-batches x {micro}" if full > 1 else f"1 micro-batch x {micro}"
    parts += f" + {rest}" if rest else ""
    most = "" if size % ranks == 0 else "at most "
    shares = f"{ranks} ranks x {most}{f'({parts})' if rest else parts}" if ranks > 1 else parts
    layout = f"{size} = {shares}"
    if size < ranks:
        return layout, f"ranks past the first {size} get no data: set batch_size={ranks}"
    if ctx.task_info.not_splitting:
        return layout, f"splitting changes the numbers here: {ctx.task_info.not_splitting[0]}"
    return layout, "the same update as without splitting"


@resolves("data.shuffle")
def shuffle(ctx: PlanContext) -> Decision:
    """Shuffle, unless the data has an order."""
    sampler, wanted = ctx.task_info.order, ctx.get("data.shuffle")
    if sampler is not None:
        if wanted is not None:
            ctx.reject(
                f"data.shuffle={wanted} is set, but the Task has the sampler {sampler.name!r}. "
                "Leave data.shuffle out, or leave Task(sampler=...) out."
            )
        return sampler.name != "sequential", "the Task's sampler decides"
    if ctx.task_info.is_stream:
        if wanted:
            ctx.reject(
                "data.shuffle=True needs samples with positions, and the training data is a "
                "stream. Use data.shuffle_buffer=1000, which draws from that many samples."
            )
        return ctx.set_or(False, "a stream has its own order")
    reason = "ordered data trains worse; the seed and the epoch determine the order"
    return _loader_or(ctx, True, reason)


@resolves("data.shuffle_buffer")
def shuffle_buffer(ctx: PlanContext) -> Decision:
    """Shuffle a stream if it is set."""
    if ctx.task_info.is_stream:
        return ctx.set_or(None, "not set: the stream keeps its own order")
    return None, "the data is not a stream: data.shuffle shuffles all of it"


@resolves("data.drop_last")
def drop_last(ctx: PlanContext) -> Decision:
    """Keep the smaller last batch, and warn if BatchNorm cannot compute on it."""
    given = _of_loader(ctx)
    if given is not None:
        return given
    if ctx.task_info.batch_norm and not ctx.task_info.batched:
        sizes = ctx["batch_size"], ctx["micro_batch_size"]
        layout = BatchLayout(ctx.task_info.train_samples, *sizes, ranks=ctx["parallel.ranks"])
        single = find_single(layout, None)
        if single is not None and single.samples_left is not None:
            return ctx.set_or(
                False,
                "no sample is lost; but the last batch ends in a forward of 1 sample, and a "
                "BatchNorm layer that gets 1 value per channel from it raises an error: set "
                "data.drop_last=True",
            )
    return ctx.set_or(False, "a smaller last batch is weighted correctly: no sample is lost")


def _on_every_rank(ctx: PlanContext, reason: str) -> str:
    """Complete the reason of what several ranks share only if each reads all of it."""
    ranks = ctx.system.launched.size
    if ranks == 1:
        return reason
    return f"{reason}; each of {ranks} ranks loads all of it, and keeps its share"


@resolves("data.sampler")
def sampler(ctx: PlanContext) -> Decision:
    """Name the order of the samples."""
    own = ctx.task_info.order
    if own is not None:
        sizes = ctx["batch_size"], ctx["micro_batch_size"]
        last, ranks = ctx["data.drop_last"], ctx["parallel.ranks"]
        layout = BatchLayout(ctx.task_info.train_samples, *sizes, last, ranks=ranks)
        return own.name, own.explain(layout, ctx["seed"])
    if ctx.task_info.is_stream:
        reason = "samples come as the stream yields them; data.shuffle_buffer shuffles"
        return "the stream's", _on_every_rank(ctx, reason)
    if ctx["data.shuffle"]:
        return "shuffled", "each sample once in an epoch: data.shuffle is on"
    return "sequential", "each sample once, as stored: data.shuffle is off"


@resolves("batch_transform")
def batch_transform(ctx: PlanContext) -> Decision:
    """Name the transform of the Task."""
    own = ctx.task_info.batch_transform
    if own is None:
        return None, "the Task has none"
    return own, _on_every_rank(ctx, "the Task's: of each global batch in training, seeded by step")


@resolves("exclude_samples")
def exclude_samples(ctx: PlanContext) -> Decision:
    """Exclude the samples that are set."""
    skips = ctx.task_info.skips
    if skips is None:
        return None, "every sample is trained on"
    source = f", {skips.source}" if skips.source else ""
    return skips, f"excluded by index, set {ctx.origin('exclude_samples')}{source}"


@resolves("data.randomness")
def randomness(ctx: PlanContext) -> Decision:
    """Show how the randomness of loading is seeded."""
    return ctx.task_info.randomness


@resolves("data.resume")
def resume(ctx: PlanContext) -> Decision:
    """Show how a run resumes in the data."""
    if not ctx.task_info.is_stream:
        return "by position", "a resumed run loads only the samples that are left"
    if ctx["data.shuffle_buffer"] is not None:
        reason = "the samples in data.shuffle_buffer are not in the stream's state"
        return "by reading again", reason
    if ctx.task_info.why_read_again:
        return "by reading again", ctx.task_info.why_read_again
    return BY_STATE, "the stream's own: tried on its first samples"


@resolves("data.num_workers", "data.pin_memory", "data.persistent_workers", "data.prefetch_factor")
def loading(ctx: PlanContext) -> Decision:
    """Load in other processes beside a GPU, if there is anything to load."""
    if ctx.option == "data.num_workers":
        return _loader_or(ctx, *_num_workers(ctx))
    if ctx.option == "data.pin_memory":
        gain = "copies to the GPU need not wait for the host"
        return _loader_or(ctx, ctx.on_gpu, gain if ctx.on_gpu else "nothing is copied to a GPU")
    persists = ctx.option == "data.persistent_workers"
    if ctx["data.num_workers"] == 0:
        return _loader_or(ctx, False if persists else None, "no workers")
    if persists:
        return _loader_or(ctx, True, "starting workers in each epoch costs seconds")
    return _loader_or(ctx, 2, "torch's default")


def _num_workers(ctx: PlanContext) -> Decision:
    if ctx.task_info.in_memory:
        return 0, "the data is in memory: slicing it needs no process"
    if not ctx.on_gpu:
        return 0, "on a CPU the step itself uses the cores"
    if ctx.system.is_daemon:
        return 0, "this process is a daemon of multiprocessing, which may start no workers"
    if ctx.task_info.is_stream:
        return 1, "loading beside the GPU; more workers would each need a part of the stream"
    cpus = ctx.system.cpus
    return min(4, max(1, cpus - 1)), f"loading beside the GPU; {cpus} cores here"


@resolves("data.group_by_length")
def group_by_length(ctx: PlanContext) -> Decision:
    """Check that the samples have lengths, and no other order."""
    info = ctx.task_info
    if not ctx.get("data.group_by_length"):
        return ctx.declared()
    start = "data.group_by_length=True"
    if info.order is not None and info.order.name != "by length":
        ctx.reject(
            f"{start}, but the Task has the order {info.order.name!r}. Leave one of them out."
        )
    elif info.loader is not None:
        ctx.reject(
            f"{start} needs a dataset, and Task(train=...) is a DataLoader. Pass its dataset."
        )
    elif info.is_stream or info.no_data or info.batched:
        ctx.reject(
            f"{start} needs samples with positions, which this training data has not. Leave it out."
        )
    elif info.in_memory:
        ctx.reject(f"{start}, but the data is tensors in memory, of one length each. Leave it out.")
    return ctx.declared()


@resolves("data.keep_decoded")
def keep_decoded(ctx: PlanContext) -> Decision:
    """Check that there are images to keep, and memory for them."""
    amount = ctx.get("data.keep_decoded")
    if amount is None:
        return ctx.declared()
    start = f"data.keep_decoded={amount!r}"
    if "PIL" not in ctx.system.extras:
        ctx.reject(f"{start} keeps images of Pillow, which is not installed. pip install pillow")
    if ctx.task_info.in_memory or ctx.task_info.no_data or ctx.task_info.is_stream:
        kind = "a stream" if ctx.task_info.is_stream else "no dataset that opens files"
        ctx.reject(
            f"{start} keeps what a dataset opens by index, and the training data is {kind}. Leave "
            "it out."
        )
    if (parse_bytes(amount) or 0) > ctx.system.memory:
        ctx.reject(
            f"{start} is more than the {format_bytes(int(ctx.system.memory))} of memory of this "
            "machine or its container. "
            f"Use data.keep_decoded='{int(ctx.system.memory / 2e6)}MB' or less."
        )
    return ctx.declared()


@resolves("data.decoded_bytes")
def decoded_bytes(ctx: PlanContext) -> Decision:
    """Share the memory between the processes of this machine."""
    amount, processes = ctx["data.keep_decoded"], ctx.system.launched.local_size
    if amount is None:
        return None, "no decoded images are kept"
    share = int(parse_bytes(amount) or 0) // processes
    return share, f"of each of {processes} processes of this machine"


@resolves("steps_per_epoch")
def steps_per_epoch(ctx: PlanContext) -> Decision:
    """Count the batches of an epoch."""
    samples, size = ctx.task_info.train_samples, int(ctx["batch_size"])
    if samples is None:
        return None, "the training data is a stream without a length"
    steps = samples // size if ctx["data.drop_last"] else math.ceil(samples / size)
    limit = ctx["limit_train_batches"]
    if steps == 0:
        ctx.reject(
            f"data.drop_last drops every batch: {samples} samples are less than "
            f"batch_size={size}. Use a smaller batch_size or drop_last=False."
        )
    reason = f"{samples} samples in batches of {size}"
    return (steps if limit is None else min(steps, limit)), reason


@resolves("total_steps")
def total_steps(ctx: PlanContext) -> Decision:
    """Count the steps of the run."""
    if ctx.is_set("max_steps"):
        return ctx.get("max_steps"), f"set {ctx.origin('max_steps')}"
    if not ctx.is_set("epochs"):
        ctx.reject("The length of the run is not set. Set epochs=10 or max_steps=1000.")
        return None, ""
    epochs, steps = ctx.get("epochs"), ctx["steps_per_epoch"]
    if ctx.task_info.no_data:
        ctx.reject(
            f"epochs={epochs:g} needs training data, and the Task has none. Set max_steps=1000 "
            "instead."
        )
    elif steps is None:
        limit = ctx["limit_train_batches"]
        example = 1000 if limit is None else max(1, round(epochs * limit))
        ctx.reject(
            f"epochs={epochs:g} needs a length of the training data, and it is a stream without "
            f"one. Set max_steps={example} instead, or add a __len__ to the stream."
        )
    else:
        length = "1 epoch" if epochs == 1 else f"{epochs:g} epochs"
        reason = f"{length} of {format_count(steps, 'step')}, set {ctx.origin('epochs')}"
        return max(1, round(epochs * steps)), reason
    return None, ""
