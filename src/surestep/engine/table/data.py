"""How the data is cut, ordered and loaded, and how long the run is."""

import math

from surestep.base.duration import parse_duration
from surestep.engine.data.order import Cut, find_single
from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table.rows import (
    Refusals,
    Rows,
    always,
    default,
    is_said,
    plain,
    read_whole,
    said,
)


def _steps_per_epoch(k: Known) -> int:
    assert k.given.train_samples is not None
    samples, batch = k.given.train_samples, int(k["batch_size"])
    whole = samples // batch if k["data.drop_last"] else math.ceil(samples / batch)
    limit: int | None = k["limit_train_batches"]
    return whole if limit is None else min(whole, limit)


def _steps_of_limit(k: Known, limit: int) -> int:
    """Return the steps of as many epochs as were set, each of `limit` batches."""
    epochs: float = k.said["epochs"]
    return max(1, round(epochs * limit))


def _loader_row(name: str) -> Row:
    return Row(
        lambda k: k.loader(name) is not None, lambda k: k.loader(name), "the DataLoader's own"
    )


def _share(k: Known) -> int:
    """Return the samples of a batch that one rank has at most."""
    return -(-int(k["batch_size"]) // int(k["parallel.ranks"]))


def _cut_text(k: Known) -> str:
    ranks, share, micro = k["parallel.ranks"], _share(k), k["micro_batch_size"]
    whole, rest = divmod(share, micro)
    parts = f"{whole} micro-batches x {micro}" if whole > 1 else f"1 micro-batch x {micro}"
    parts += f" + {rest}" if rest else ""
    if ranks == 1:
        return f"{share} = {parts}"
    most = "" if k["batch_size"] % ranks == 0 else "at most "
    return f"{k['batch_size']} = {ranks} ranks x {most}{f'({parts})' if rest else parts}"


def _leaves_one_sample(k: Known) -> bool:
    """Say whether BatchNorm layers get a single sample, in the last batch of an epoch alone."""
    sizes = k["batch_size"], k["micro_batch_size"]
    cut = Cut(k.given.train_samples, *sizes, ranks=k["parallel.ranks"])
    cuts = k.given.batch_norm and not k.given.batched
    single = find_single(cut, None) if cuts else None
    return single is not None and single.samples_left is not None


def _refuse_loader(option: str, name: str) -> Refusal:
    return Refusal(
        lambda k: (
            k.loader(name) is not None and k.said.get(option, k.loader(name)) != k.loader(name)
        ),
        lambda k: (
            f"{option}={k.said[option]!r}, but the DataLoader that was given has "
            f"{name}={k.loader(name)!r}. Say it in one place: leave {option} out, or give the "
            "dataset instead of the loader."
        ),
    )


ROWS: Rows = {
    "batch_size": (
        Row(
            lambda k: k.loader("batch_size") is not None and k["parallel.ranks"] > 1,
            lambda k: k.loader("batch_size") * k["parallel.ranks"],
            "the DataLoader's own, on each of {k[parallel.ranks]} ranks",
        ),
        _loader_row("batch_size"),
        said("batch_size"),
        Row(
            lambda k: k.given.no_data,
            lambda k: k["parallel.ranks"],
            "no training data: each rank takes the step on its own",
        ),
        Row(
            lambda k: k.given.batched,
            lambda k: k["parallel.ranks"],
            "the data comes in batches (Task(batched=True)): one for each rank",
        ),
        default(64, "nothing said: a size that trains most small models"),
    ),
    "micro_batch_size": (
        Row(
            lambda k: k.given.batched,
            lambda _: 1,
            "the data comes in batches (Task(batched=True)), which are not cut",
        ),
        said("micro_batch_size"),
        Row(
            lambda k: k["parallel.ranks"] > 1,
            _share,
            "all that a rank has of a batch at once: nothing else said",
        ),
        Row(always, lambda k: k["batch_size"], "the whole batch at once: nothing else said"),
    ),
    "cutting": (
        Row(
            lambda k: k["batch_size"] < k["parallel.ranks"],
            _cut_text,
            "ranks past the first {k[batch_size]} get no data: say batch_size={k[parallel.ranks]}",
        ),
        Row(
            lambda k: k["micro_batch_size"] >= k["batch_size"],
            lambda k: f"{k['batch_size']} = 1 micro-batch",
            "not cut",
        ),
        Row(
            lambda k: bool(k.given.not_splitting),
            _cut_text,
            "cutting changes the numbers here: {k.given.not_splitting[0]}",
        ),
        Row(always, _cut_text, "the same update as uncut"),
    ),
    "data.shuffle": (
        Row(
            lambda k: k.given.order is not None,
            lambda k: k.order_name != "sequential",
            "data.order decides",
        ),
        _loader_row("shuffle"),
        said("data.shuffle"),
        Row(lambda k: k.given.is_stream, lambda _: False, "a stream comes in its own order"),
        default(True, "ordered data trains worse; the order is a function of (seed, epoch)"),
    ),
    "data.shuffle_buffer": (
        said("data.shuffle_buffer"),
        Row(
            lambda k: k.given.is_stream,
            lambda _: None,
            "nothing said: the stream is not mixed beyond what it does itself",
        ),
        default(None, "the data is not a stream: data.shuffle mixes all of it"),
    ),
    "limit_train_batches": plain("limit_train_batches", None, "nothing set: all of the data"),
    "max_time": (
        said("max_time", parse_duration),
        default(None, "nothing set: the run goes to its end"),
    ),
    "data.drop_last": (
        _loader_row("drop_last"),
        said("data.drop_last"),
        Row(
            _leaves_one_sample,
            lambda _: False,
            "no sample is lost; but the last batch ends in a forward of 1 sample, and a BatchNorm "
            "layer that gets 1 value per channel from it is an error: set data.drop_last=True",
        ),
        default(False, "a smaller last batch is weighted rightly: no sample is lost"),
    ),
    "data.order": (
        Row(
            lambda k: k.given.order is not None,
            lambda k: k.order_name,
            "{k.order_text}",
        ),
        *read_whole(
            lambda k: k.given.is_stream,
            lambda _: "the stream's",
            "samples come as the stream gives them; data.shuffle_buffer mixes",
        ),
        Row(lambda k: k["data.shuffle"], lambda _: "shuffled", "each sample once: data.shuffle"),
        default("sequential", "each sample once, as stored: data.shuffle is off"),
    ),
    "skip_samples": (
        Row(
            lambda k: k.given.skips is not None,
            lambda k: k.given.skips,
            "left out by index, said: {origin}{k.skips_source}",
        ),
        default(None, "every sample is trained on"),
    ),
    "batch_transform": (
        *read_whole(
            lambda k: k.given.batch_transform is not None,
            lambda k: k.given.batch_transform,
            "the Task's: of each global batch in training, seeded by step",
        ),
        default(None, "the Task has none"),
    ),
    "data.num_workers": (
        _loader_row("num_workers"),
        said("data.num_workers"),
        Row(lambda k: k.given.in_memory, lambda _: 0, "the data is in memory and only sliced"),
        Row(
            lambda k: k.given.is_stream and k.on_gpu,
            lambda _: 1,
            "loading beside the GPU; more workers would each need a part of the stream",
        ),
        Row(
            lambda k: k.on_gpu,
            lambda k: min(4, max(1, k.facts.cpus - 1)),
            "loading beside the GPU; {k.facts.cpus} cores here",
        ),
        default(0, "on a CPU the step itself uses the cores"),
    ),
    "data.pin_memory": (
        _loader_row("pin_memory"),
        said("data.pin_memory"),
        Row(lambda k: k.on_gpu, lambda _: True, "copies to the GPU need not wait for the host"),
        default(False, "nothing is copied to a GPU"),
    ),
    "data.persistent_workers": (
        _loader_row("persistent_workers"),
        said("data.persistent_workers"),
        Row(
            lambda k: k["data.num_workers"] > 0,
            lambda _: True,
            "starting workers anew each epoch costs seconds",
        ),
        default(False, "no workers"),
    ),
    "data.prefetch_factor": (
        _loader_row("prefetch_factor"),
        said("data.prefetch_factor"),
        Row(lambda k: k["data.num_workers"] > 0, lambda _: 2, "torch's default"),
        default(None, "no workers"),
    ),
    "steps_per_epoch": (
        Row(
            lambda k: k.given.train_samples is None,
            lambda _: None,
            "the training data is a stream that does not say how many samples it has",
        ),
        Row(
            always,
            _steps_per_epoch,
            "{k.given.train_samples} samples in batches of {k[batch_size]}",
        ),
    ),
    "total_steps": (
        Row(
            is_said("max_steps"),
            lambda k: k.said["max_steps"],
            "said: {origins[max_steps]}",
        ),
        Row(
            always,
            lambda k: max(1, round(k.said["epochs"] * k["steps_per_epoch"])),
            "{k.said[epochs]:g} epochs of {k[steps_per_epoch]} steps, said: {origins[epochs]}",
        ),
    ),
}

REFUSALS: Refusals = {
    "batch_size": (_refuse_loader("batch_size", "batch_size"),),
    "micro_batch_size": (
        Refusal(
            lambda k: k.given.batched and k.said.get("micro_batch_size", 1) != 1,
            lambda k: (
                f"micro_batch_size={k.said['micro_batch_size']}, but the data comes in batches "
                "(Task(batched=True)), which are not cut or put together. Leave it out."
            ),
        ),
        Refusal(
            lambda k: k.said.get("micro_batch_size", 0) > k["batch_size"],
            lambda k: (
                f"micro_batch_size={k.said['micro_batch_size']} is larger than the whole batch of "
                f"{k['batch_size']}. Use at most {k['batch_size']}, or a larger batch_size."
            ),
        ),
    ),
    "data.shuffle": (
        Refusal(
            lambda k: k.given.order is not None and "data.shuffle" in k.said,
            lambda k: (
                f"data.shuffle={k.said['data.shuffle']} is said, but the data has the order "
                f"{k.order_name!r}. Leave data.shuffle out; or leave the order out, and let "
                "data.shuffle choose."
            ),
        ),
        Refusal(
            lambda k: k.given.is_stream and bool(k.said.get("data.shuffle")),
            lambda _: (
                "data.shuffle=True needs positions, and the training data is a stream. Say "
                "data.shuffle_buffer=1000, which draws the next sample from that many."
            ),
        ),
        _refuse_loader("data.shuffle", "shuffle"),
    ),
    "data.shuffle_buffer": (
        Refusal(
            lambda k: "data.shuffle_buffer" in k.said and not k.given.is_stream,
            lambda k: (
                f"data.shuffle_buffer={k.said['data.shuffle_buffer']} is for streams, and the "
                "training data has positions. Say data.shuffle=True, which mixes all of it."
            ),
        ),
    ),
    "skip_samples": (
        Refusal(
            lambda k: "skip_samples" in k.said and k.given.is_stream,
            lambda _: (
                "skip_samples names samples by index, and the training data is a stream, whose "
                "samples have none. Leave them out in the stream itself."
            ),
        ),
    ),
    "data.drop_last": (_refuse_loader("data.drop_last", "drop_last"),),
    "data.num_workers": (_refuse_loader("data.num_workers", "num_workers"),),
    "data.pin_memory": (
        _refuse_loader("data.pin_memory", "pin_memory"),
        Refusal(
            lambda k: bool(k.said.get("data.pin_memory")) and not k.on_gpu,
            lambda k: (
                "data.pin_memory=True is for copies to a GPU, and the device is cpu. Leave it out."
            ),
        ),
    ),
    "data.persistent_workers": (
        _refuse_loader("data.persistent_workers", "persistent_workers"),
        Refusal(
            lambda k: bool(k.said.get("data.persistent_workers")) and not k["data.num_workers"],
            lambda k: "data.persistent_workers=True needs workers: say data.num_workers=2.",
        ),
    ),
    "data.prefetch_factor": (
        _refuse_loader("data.prefetch_factor", "prefetch_factor"),
        Refusal(
            lambda k: "data.prefetch_factor" in k.said and not k["data.num_workers"],
            lambda k: "data.prefetch_factor needs workers: say data.num_workers=2.",
        ),
    ),
    "total_steps": (
        Refusal(
            lambda k: k.given.no_data and "epochs" in k.said,
            lambda k: (
                f"epochs={k.said['epochs']:g} needs training data, and the Task has none. Set "
                "max_steps=1000 instead."
            ),
        ),
        Refusal(
            lambda k: k["steps_per_epoch"] is None and "epochs" in k.said and not k.given.no_data,
            lambda k: (
                f"epochs={k.said['epochs']:g} needs max_steps instead: the training data is a "
                "stream that does not say how many samples it has, so it may be shorter than "
                f"limit_train_batches={limit}. Set max_steps={_steps_of_limit(k, limit)} instead."
                if (limit := k["limit_train_batches"]) is not None
                else f"epochs={k.said['epochs']:g} needs max_steps instead: the training data is a "
                "stream that does not say how many samples it has. Say max_steps=1000, or give "
                "the stream a __len__."
            ),
        ),
        Refusal(
            lambda k: k["steps_per_epoch"] == 0,
            lambda k: (
                f"data.drop_last drops every batch: {k.given.train_samples} samples are less than "
                f"batch_size={k['batch_size']}. Use a smaller batch_size or drop_last=False."
            ),
        ),
        Refusal(
            lambda k: "epochs" not in k.said and "max_steps" not in k.said,
            lambda k: "Nothing says how long to train. Say epochs=10 or max_steps=1000.",
        ),
    ),
}
