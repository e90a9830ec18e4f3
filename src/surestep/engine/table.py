"""The rows that decide: for each option (condition, choice, reason); the first that holds.

In order of dependence: a row may look at what stands above it.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from surestep.base.duration import parse_duration
from surestep.engine.plan import Known, Row

DEFAULT_SEED = 0


def _always(_: Known) -> bool:
    return True


def _is_said(option: str) -> Callable[[Known], bool]:
    return lambda k: option in k.said


def _said(option: str, read: Callable[[Any], Any] = lambda value: value) -> Row:
    return Row(_is_said(option), lambda k: read(k.said[option]), "said: {origin}")


def _default(value: Any, reason: str) -> Row:
    return Row(_always, lambda _: value, reason)


def _plain(option: str, value: Any, reason: str) -> tuple[Row, ...]:
    return (_said(option), _default(value, reason))


def _of_optimizer(name: str, option: str, value: Any, reason: str) -> tuple[Row, ...]:
    """Rows of an option that only the optimizer `name` has."""
    return (
        _said(option),
        Row(lambda k: k["optim.name"] == name, lambda _: value, reason),
        _default(None, "not an option of {k[optim.name]}"),
    )


def _steps_per_epoch(k: Known) -> int:
    samples, batch = k.given.train_samples, int(k["batch_size"])
    return samples // batch if k["data.drop_last"] else math.ceil(samples / batch)


def _loader_row(name: str) -> Row:
    return Row(
        lambda k: k.loader(name) is not None, lambda k: k.loader(name), "the DataLoader's own"
    )


TABLE: dict[str, tuple[Row, ...]] = {
    "seed": _plain("seed", DEFAULT_SEED, "nothing said: every run starts from the same seed"),
    "deterministic": _plain("deterministic", False, "torch's default; True is slower on a GPU"),
    "device": (
        _said("device", torch.device),
        Row(
            lambda k: bool(k.facts.cuda_devices),
            lambda _: torch.device("cuda"),
            "this machine has {k.facts.cuda_devices[0]}",
        ),
        _default(torch.device("cpu"), "no CUDA device here"),
    ),
    "precision": (
        Row(
            lambda k: k.said.get("precision", "auto") != "auto",
            lambda k: k.said["precision"],
            "said: {origin}",
        ),
        Row(
            lambda k: k.on_gpu and k.facts.bf16_native,
            lambda _: "bf16",
            "auto: this GPU has bf16 natively",
        ),
        _default("fp32", "auto: bf16 only where a GPU has it natively"),
    ),
    "batch_size": (
        _loader_row("batch_size"),
        _said("batch_size"),
        _default(64, "nothing said: a size that trains most small models"),
    ),
    "micro_batch_size": (
        _said("micro_batch_size"),
        Row(_always, lambda k: k["batch_size"], "the whole batch at once: nothing else said"),
    ),
    "cutting": (
        Row(
            lambda k: k["micro_batch_size"] >= k["batch_size"],
            lambda k: f"{k['batch_size']} = 1 micro-batch",
            "not cut",
        ),
        Row(
            lambda k: bool(k.given.not_splitting),
            lambda k: _cut_text(k),
            "cutting changes the numbers here: {k.given.not_splitting[0]}",
        ),
        Row(_always, lambda k: _cut_text(k), "the same update as uncut"),
    ),
    "data.shuffle": (
        _loader_row("shuffle"),
        _said("data.shuffle"),
        _default(True, "ordered data trains worse; the order is a function of (seed, epoch)"),
    ),
    "data.drop_last": (
        _loader_row("drop_last"),
        _said("data.drop_last"),
        _default(False, "a smaller last batch is weighted rightly: no sample is lost"),
    ),
    "data.num_workers": (
        _loader_row("num_workers"),
        _said("data.num_workers"),
        Row(lambda k: k.given.in_memory, lambda _: 0, "the data is in memory and only sliced"),
        Row(
            lambda k: k.on_gpu,
            lambda k: min(4, max(1, k.facts.cpus - 1)),
            "loading beside the GPU; {k.facts.cpus} cores here",
        ),
        _default(0, "on a CPU the step itself uses the cores"),
    ),
    "data.pin_memory": (
        _loader_row("pin_memory"),
        _said("data.pin_memory"),
        Row(lambda k: k.on_gpu, lambda _: True, "copies to the GPU need not wait for the host"),
        _default(False, "nothing is copied to a GPU"),
    ),
    "data.persistent_workers": (
        _loader_row("persistent_workers"),
        _said("data.persistent_workers"),
        Row(
            lambda k: k["data.num_workers"] > 0,
            lambda _: True,
            "starting workers anew each epoch costs seconds",
        ),
        _default(False, "no workers"),
    ),
    "data.prefetch_factor": (
        _loader_row("prefetch_factor"),
        _said("data.prefetch_factor"),
        Row(lambda k: k["data.num_workers"] > 0, lambda _: 2, "torch's default"),
        _default(None, "no workers"),
    ),
    "steps_per_epoch": (
        Row(
            _always,
            _steps_per_epoch,
            "{k.given.train_samples} samples in batches of {k[batch_size]}",
        ),
    ),
    "total_steps": (
        Row(
            _is_said("max_steps"),
            lambda k: k.said["max_steps"],
            "said: {origins[max_steps]}",
        ),
        Row(
            _always,
            lambda k: max(1, round(k.said["epochs"] * k["steps_per_epoch"])),
            "{k.said[epochs]:g} epochs of {k[steps_per_epoch]} steps, said: {origins[epochs]}",
        ),
    ),
    "optim.name": (
        Row(lambda k: k.given.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        _said("optim.name"),
        _default("adamw", "trains most models without tuning; decay decoupled from the rate"),
    ),
    "optim.implementation": (
        Row(lambda k: k.given.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        Row(
            lambda k: k.given.floating,
            lambda _: "fused",
            "torch has it for {k[device]}: one kernel, and it can skip without the host",
        ),
        _default("foreach", "fused takes no complex parameters"),
    ),
    "optim.lr": (
        _said("optim.lr"),
        Row(lambda k: k.given.own_optimizer, lambda _: None, "the Task's optimizer's own"),
        _default(1e-3, "torch's default"),
    ),
    "optim.weight_decay": (
        _said("optim.weight_decay"),
        Row(lambda k: k["optim.name"] == "adamw", lambda _: 1e-2, "torch's default for AdamW"),
        Row(lambda k: k.given.own_optimizer, lambda _: None, "the Task's optimizer's own"),
        _default(0.0, "torch's default for SGD"),
    ),
    "optim.betas": _of_optimizer("adamw", "optim.betas", (0.9, 0.999), "torch's default"),
    "optim.eps": _of_optimizer("adamw", "optim.eps", 1e-8, "torch's default"),
    "optim.momentum": _of_optimizer("sgd", "optim.momentum", 0.0, "torch's default"),
    "optim.nesterov": _of_optimizer("sgd", "optim.nesterov", False, "torch's default"),
    "schedule.name": _plain("schedule.name", "constant", "nothing said: the rate is left alone"),
    "schedule.warmup": _plain("schedule.warmup", "0%", "nothing said: no warm-up"),
    "schedule.min_lr_ratio": _plain("schedule.min_lr_ratio", 0.0, "down to zero"),
    "schedule.floor": _plain("schedule.floor", "scale", "the floor is reached at the end"),
    "schedule.every": _plain("schedule.every", "1 step", "as smooth as can be"),
    "max_grad_norm": (
        Row(
            lambda k: k.said.get("max_grad_norm") == "off",
            lambda _: None,
            "off, said: {origin}; the norm is still measured",
        ),
        _said("max_grad_norm"),
        Row(_is_said("clip_value"), lambda _: None, "clip_value clips instead"),
        _default(1.0, "one bad batch cannot throw the weights far; the share clipped is shown"),
    ),
    "clip_value": _plain("clip_value", None, "the norm is clipped instead"),
    "on_nonfinite": _plain("on_nonfinite", "raise", "a run that is broken should say so"),
    "max_nonfinite": (
        _said("max_nonfinite"),
        Row(lambda k: k["on_nonfinite"] == "skip", lambda _: 100, "more is not bad luck"),
        _default(0, "on_nonfinite is raise"),
    ),
    "guard": (
        Row(
            lambda k: k["precision"] == "fp16",
            lambda _: "scaled",
            "fp16 may overflow: the host reads the loss scale once a step",
        ),
        Row(
            lambda k: k["on_nonfinite"] == "skip",
            lambda _: "reading",
            "skipping for good needs the host to know: one read a step",
        ),
        Row(
            lambda k: k["optim.implementation"] != "fused",
            lambda _: "reading",
            "this optimizer cannot be told to skip on the device: one read a step",
        ),
        _default("sticky", "kept on the device and read at log points: no read a step"),
    ),
    "scaler.init_scale": _plain("scaler.init_scale", 65536.0, "torch's default"),
    "scaler.growth_factor": _plain("scaler.growth_factor", 2.0, "torch's default"),
    "scaler.growth_interval": _plain("scaler.growth_interval", 2000, "torch's default"),
    "scaler.backoff_factor": _plain("scaler.backoff_factor", 0.5, "torch's default"),
    "validation.every": (
        _said("validation.every", parse_duration),
        _default(parse_duration("1 epoch"), "once through the data"),
    ),
    "validation.batch_size": (
        Row(
            lambda k: bool(k.given.val_batch_sizes),
            lambda k: k.given.val_batch_sizes[0],
            "the val DataLoader's own",
        ),
        _said("validation.batch_size"),
        Row(
            _always,
            lambda k: k["micro_batch_size"],
            "what fits in training fits without gradients; the numbers do not depend on it",
        ),
    ),
    "validation.metric": (
        Row(lambda k: not k.given.val_sets, lambda _: None, "no validation data"),
        Row(_is_said("validation.metric"), lambda k: k.metric(), "said: {origin}"),
        Row(_always, lambda k: f"{k.given.val_sets[0]}/loss", "what is trained on"),
    ),
    "validation.mode": (
        _said("validation.mode"),
        Row(
            lambda k: k.metric_mode() == "max",
            lambda _: "max",
            "a larger {k[validation.metric]} is better",
        ),
        _default("min", "a smaller {k[validation.metric]} is better"),
    ),
    "early_stop.patience": _plain("early_stop.patience", None, "nothing said: no early stopping"),
    "early_stop.min_delta": _plain("early_stop.min_delta", 0.0, "any gain counts"),
    "checkpoint.every": (
        _said("checkpoint.every", parse_duration),
        _default(parse_duration("1 epoch"), "no more than an epoch is lost"),
    ),
    "checkpoint.keep_last": _plain("checkpoint.keep_last", 2, "the newest, and one behind it"),
    "checkpoint.keep_best": _plain("checkpoint.keep_best", 1, "the best by validation.metric"),
    "logging.every": (
        _said("logging.every", parse_duration),
        _default(parse_duration("50 steps"), "each read waits for the device; 50 steps hide it"),
    ),
    "logging.progress": (
        Row(
            lambda k: k.said.get("logging.progress", "auto") != "auto",
            lambda k: k.said["logging.progress"],
            "said: {origin}",
        ),
        Row(lambda k: k.facts.display != "none", lambda _: "bar", "a {k.facts.display} is here"),
        _default("plain", "no terminal here"),
    ),
}


def _cut_text(k: Known) -> str:
    batch, micro = k["batch_size"], k["micro_batch_size"]
    whole, rest = divmod(batch, micro)
    parts = f"{whole} micro-batches x {micro}" if whole > 1 else f"1 micro-batch x {micro}"
    return f"{batch} = {parts}" + (f" + {rest}" if rest else "")
