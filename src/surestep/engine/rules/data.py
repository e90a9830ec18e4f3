"""How the data is cut, ordered and loaded, and how long the run is."""

import math

from surestep.config.duration import parse_duration
from surestep.engine.plan.batching import BatchLayout, find_single
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.rules.helpers import (
    Refusals,
    Rows,
    always,
    default_value,
    is_set,
    replicated_read,
    user_value,
    user_value_or,
)


def _steps_per_epoch(k: PlanContext) -> int:
    assert k.task_info.train_samples is not None
    samples, batch = k.task_info.train_samples, int(k["batch_size"])
    whole = samples // batch if k["data.drop_last"] else math.ceil(samples / batch)
    limit: int | None = k["limit_train_batches"]
    return whole if limit is None else min(whole, limit)


def _steps_of_limit(k: PlanContext, limit: int) -> int:
    """Return the steps of as many epochs as were set, each of `limit` batches."""
    epochs: float = k.set_options["epochs"]
    return max(1, round(epochs * limit))


def _loader_row(name: str) -> Rule:
    return Rule(
        lambda k: k.dataloader_setting(name) is not None,
        lambda k: k.dataloader_setting(name),
        "the DataLoader's own",
    )


def _share(k: PlanContext) -> int:
    """Return the samples of a batch that one rank has at most."""
    return -(-int(k["batch_size"]) // int(k["parallel.ranks"]))


def _cut_text(k: PlanContext) -> str:
    ranks, share, micro = k["parallel.ranks"], _share(k), k["micro_batch_size"]
    whole, rest = divmod(share, micro)
    parts = f"{whole} micro-batches x {micro}" if whole > 1 else f"1 micro-batch x {micro}"
    parts += f" + {rest}" if rest else ""
    if ranks == 1:
        return f"{share} = {parts}"
    most = "" if k["batch_size"] % ranks == 0 else "at most "
    return f"{k['batch_size']} = {ranks} ranks x {most}{f'({parts})' if rest else parts}"


def _leaves_one_sample(k: PlanContext) -> bool:
    """Say whether BatchNorm layers get a single sample, in the last batch of an epoch alone."""
    sizes = k["batch_size"], k["micro_batch_size"]
    cut = BatchLayout(k.task_info.train_samples, *sizes, ranks=k["parallel.ranks"])
    cuts = k.task_info.batch_norm and not k.task_info.batched
    single = find_single(cut, None) if cuts else None
    return single is not None and single.samples_left is not None


def _refuse_loader(option: str, name: str) -> Constraint:
    return Constraint(
        lambda k: (
            k.dataloader_setting(name) is not None
            and k.set_options.get(option, k.dataloader_setting(name)) != k.dataloader_setting(name)
        ),
        lambda k: (
            f"{option}={k.set_options[option]!r}, but the DataLoader that was given has "
            f"{name}={k.dataloader_setting(name)!r}. Say it in one place: leave {option} out, or "
            "give the "
            "dataset instead of the loader."
        ),
    )


ROWS: Rows = {
    "batch_size": (
        Rule(
            lambda k: k.dataloader_setting("batch_size") is not None and k["parallel.ranks"] > 1,
            lambda k: k.dataloader_setting("batch_size") * k["parallel.ranks"],
            "the DataLoader's own, on each of {k[parallel.ranks]} ranks",
        ),
        _loader_row("batch_size"),
        user_value("batch_size"),
        Rule(
            lambda k: k.task_info.no_data,
            lambda k: k["parallel.ranks"],
            "no training data: each rank takes the step on its own",
        ),
        Rule(
            lambda k: k.task_info.batched,
            lambda k: k["parallel.ranks"],
            "the data comes in batches (Task(batched=True)): one for each rank",
        ),
        default_value(64, "not set: a size that trains most small models"),
    ),
    "micro_batch_size": (
        Rule(
            lambda k: k.task_info.batched,
            lambda _: 1,
            "the data comes in batches (Task(batched=True)), which are not cut",
        ),
        user_value("micro_batch_size"),
        Rule(
            lambda k: k["parallel.ranks"] > 1,
            _share,
            "all that a rank has of a batch at once: nothing else said",
        ),
        Rule(always, lambda k: k["batch_size"], "the whole batch at once: nothing else said"),
    ),
    "batch_layout": (
        Rule(
            lambda k: k["batch_size"] < k["parallel.ranks"],
            _cut_text,
            "ranks past the first {k[batch_size]} get no data: say batch_size={k[parallel.ranks]}",
        ),
        Rule(
            lambda k: k["micro_batch_size"] >= k["batch_size"],
            lambda k: f"{k['batch_size']} = 1 micro-batch",
            "not cut",
        ),
        Rule(
            lambda k: bool(k.task_info.not_splitting),
            _cut_text,
            "cutting changes the numbers here: {k.task_info.not_splitting[0]}",
        ),
        Rule(always, _cut_text, "the same update as uncut"),
    ),
    "data.shuffle": (
        Rule(
            lambda k: k.task_info.order is not None,
            lambda k: k.order_name != "sequential",
            "data.sampler decides",
        ),
        _loader_row("shuffle"),
        user_value("data.shuffle"),
        Rule(lambda k: k.task_info.is_stream, lambda _: False, "a stream comes in its own order"),
        default_value(True, "ordered data trains worse; the order is a function of (seed, epoch)"),
    ),
    "data.shuffle_buffer": (
        user_value("data.shuffle_buffer"),
        Rule(
            lambda k: k.task_info.is_stream,
            lambda _: None,
            "not set: the stream is not mixed beyond what it does itself",
        ),
        default_value(None, "the data is not a stream: data.shuffle mixes all of it"),
    ),
    "limit_train_batches": user_value_or("limit_train_batches", None, "not set: all of the data"),
    "max_time": (
        user_value("max_time", parse_duration),
        default_value(None, "not set: the run goes to its end"),
    ),
    "data.drop_last": (
        _loader_row("drop_last"),
        user_value("data.drop_last"),
        Rule(
            _leaves_one_sample,
            lambda _: False,
            "no sample is lost; but the last batch ends in a forward of 1 sample, and a BatchNorm "
            "layer that gets 1 value per channel from it is an error: set data.drop_last=True",
        ),
        default_value(False, "a smaller last batch is weighted rightly: no sample is lost"),
    ),
    "data.sampler": (
        Rule(
            lambda k: k.task_info.order is not None,
            lambda k: k.order_name,
            "{k.order_text}",
        ),
        *replicated_read(
            lambda k: k.task_info.is_stream,
            lambda _: "the stream's",
            "samples come as the stream gives them; data.shuffle_buffer mixes",
        ),
        Rule(lambda k: k["data.shuffle"], lambda _: "shuffled", "each sample once: data.shuffle"),
        default_value("sequential", "each sample once, as stored: data.shuffle is off"),
    ),
    "exclude_samples": (
        Rule(
            lambda k: k.task_info.skips is not None,
            lambda k: k.task_info.skips,
            "left out by index, set {origin}{k.skips_source}",
        ),
        default_value(None, "every sample is trained on"),
    ),
    "batch_transform": (
        *replicated_read(
            lambda k: k.task_info.batch_transform is not None,
            lambda k: k.task_info.batch_transform,
            "the Task's: of each global batch in training, seeded by step",
        ),
        default_value(None, "the Task has none"),
    ),
    "data.num_workers": (
        _loader_row("num_workers"),
        user_value("data.num_workers"),
        Rule(lambda k: k.task_info.in_memory, lambda _: 0, "the data is in memory and only sliced"),
        Rule(
            lambda k: k.task_info.is_stream and k.on_gpu,
            lambda _: 1,
            "loading beside the GPU; more workers would each need a part of the stream",
        ),
        Rule(
            lambda k: k.on_gpu,
            lambda k: min(4, max(1, k.system.cpus - 1)),
            "loading beside the GPU; {k.system.cpus} cores here",
        ),
        default_value(0, "on a CPU the step itself uses the cores"),
    ),
    "data.pin_memory": (
        _loader_row("pin_memory"),
        user_value("data.pin_memory"),
        Rule(lambda k: k.on_gpu, lambda _: True, "copies to the GPU need not wait for the host"),
        default_value(False, "nothing is copied to a GPU"),
    ),
    "data.persistent_workers": (
        _loader_row("persistent_workers"),
        user_value("data.persistent_workers"),
        Rule(
            lambda k: k["data.num_workers"] > 0,
            lambda _: True,
            "starting workers anew each epoch costs seconds",
        ),
        default_value(False, "no workers"),
    ),
    "data.prefetch_factor": (
        _loader_row("prefetch_factor"),
        user_value("data.prefetch_factor"),
        Rule(lambda k: k["data.num_workers"] > 0, lambda _: 2, "torch's default"),
        default_value(None, "no workers"),
    ),
    "steps_per_epoch": (
        Rule(
            lambda k: k.task_info.train_samples is None,
            lambda _: None,
            "the training data is a stream that does not say how many samples it has",
        ),
        Rule(
            always,
            _steps_per_epoch,
            "{k.task_info.train_samples} samples in batches of {k[batch_size]}",
        ),
    ),
    "total_steps": (
        Rule(
            is_set("max_steps"),
            lambda k: k.set_options["max_steps"],
            "set {origins[max_steps]}",
        ),
        Rule(
            always,
            lambda k: max(1, round(k.set_options["epochs"] * k["steps_per_epoch"])),
            "{k.set_options[epochs]:g} epochs of {k[steps_per_epoch]} steps, set {origins[epochs]}",
        ),
    ),
}

REFUSALS: Refusals = {
    "batch_size": (_refuse_loader("batch_size", "batch_size"),),
    "micro_batch_size": (
        Constraint(
            lambda k: k.task_info.batched and k.set_options.get("micro_batch_size", 1) != 1,
            lambda k: (
                f"micro_batch_size={k.set_options['micro_batch_size']}, but the data comes in "
                "batches "
                "(Task(batched=True)), which are not cut or put together. Leave it out."
            ),
        ),
        Constraint(
            lambda k: k.set_options.get("micro_batch_size", 0) > k["batch_size"],
            lambda k: (
                f"micro_batch_size={k.set_options['micro_batch_size']} is larger than the whole "
                "batch of "
                f"{k['batch_size']}. Use at most {k['batch_size']}, or a larger batch_size."
            ),
        ),
    ),
    "data.shuffle": (
        Constraint(
            lambda k: k.task_info.order is not None and "data.shuffle" in k.set_options,
            lambda k: (
                f"data.shuffle={k.set_options['data.shuffle']} is said, but the data has the order "
                f"{k.order_name!r}. Leave data.shuffle out; or leave the order out, and let "
                "data.shuffle choose."
            ),
        ),
        Constraint(
            lambda k: k.task_info.is_stream and bool(k.set_options.get("data.shuffle")),
            lambda _: (
                "data.shuffle=True needs positions, and the training data is a stream. Say "
                "data.shuffle_buffer=1000, which draws the next sample from that many."
            ),
        ),
        _refuse_loader("data.shuffle", "shuffle"),
    ),
    "data.shuffle_buffer": (
        Constraint(
            lambda k: "data.shuffle_buffer" in k.set_options and not k.task_info.is_stream,
            lambda k: (
                f"data.shuffle_buffer={k.set_options['data.shuffle_buffer']} is for streams, and "
                "the "
                "training data has positions. Say data.shuffle=True, which mixes all of it."
            ),
        ),
    ),
    "exclude_samples": (
        Constraint(
            lambda k: "exclude_samples" in k.set_options and k.task_info.is_stream,
            lambda _: (
                "exclude_samples names samples by index, and the training data is a stream, whose "
                "samples have none. Leave them out in the stream itself."
            ),
        ),
    ),
    "data.drop_last": (_refuse_loader("data.drop_last", "drop_last"),),
    "data.num_workers": (_refuse_loader("data.num_workers", "num_workers"),),
    "data.pin_memory": (_refuse_loader("data.pin_memory", "pin_memory"),),
    "data.persistent_workers": (_refuse_loader("data.persistent_workers", "persistent_workers"),),
    "data.prefetch_factor": (_refuse_loader("data.prefetch_factor", "prefetch_factor"),),
    "total_steps": (
        Constraint(
            lambda k: k.task_info.no_data and "epochs" in k.set_options,
            lambda k: (
                f"epochs={k.set_options['epochs']:g} needs training data, and the Task has none. "
                "Set "
                "max_steps=1000 instead."
            ),
        ),
        Constraint(
            lambda k: (
                k["steps_per_epoch"] is None
                and "epochs" in k.set_options
                and not k.task_info.no_data
            ),
            lambda k: (
                f"epochs={k.set_options['epochs']:g} needs max_steps instead: the training data "
                "is a "
                "stream that does not say how many samples it has, so it may be shorter than "
                f"limit_train_batches={limit}. Set max_steps={_steps_of_limit(k, limit)} instead."
                if (limit := k["limit_train_batches"]) is not None
                else f"epochs={k.set_options['epochs']:g} needs max_steps instead: the training "
                "data is a "
                "stream that does not say how many samples it has. Say max_steps=1000, or give "
                "the stream a __len__."
            ),
        ),
        Constraint(
            lambda k: k["steps_per_epoch"] == 0,
            lambda k: (
                f"data.drop_last drops every batch: {k.task_info.train_samples} samples are less "
                "than "
                f"batch_size={k['batch_size']}. Use a smaller batch_size or drop_last=False."
            ),
        ),
        Constraint(
            lambda k: "epochs" not in k.set_options and "max_steps" not in k.set_options,
            lambda k: "Nothing says how long to train. Say epochs=10 or max_steps=1000.",
        ),
    ),
}
