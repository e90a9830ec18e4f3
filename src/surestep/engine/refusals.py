"""The wishes that cannot be kept, by the option before whose rows they are asked."""

import torch

from surestep.engine.plan import Known, Refusal


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


def _refuse_foreign(option: str, name: str) -> Refusal:
    """Refuse an option that belongs to another optimizer."""
    return Refusal(
        lambda k: option in k.said and k["optim.name"] != name,
        lambda k: (
            f"{option}={k.said[option]!r} is an option of {name}, but the optimizer is "
            f"{k['optim.name']}. Leave it out, or say optim.name={name!r}."
        ),
    )


def _refuse_without_val(option: str) -> Refusal:
    return Refusal(
        lambda k: option in k.said and not k.given.val_sets,
        lambda k: f"{option}={k.said[option]!r} needs evaluations: give the Task val data.",
    )


def _refuse_without_floor(option: str) -> Refusal:
    return Refusal(
        lambda k: option in k.said and k["schedule.name"] == "constant",
        lambda k: (
            f"{option}={k.said[option]!r} needs a rate that falls, and schedule.name is constant. "
            "Say schedule.name='cosine', or leave it out."
        ),
    )


def _bad_device(k: Known) -> bool:
    try:
        device = torch.device(k.said.get("device", "cpu"))
    except RuntimeError:
        return True
    if device.type == "cuda":
        return (device.index or 0) >= len(k.facts.cuda_devices)
    return device.type != "cpu"


def _devices(k: Known) -> str:
    return ", ".join(["cpu", *(f"cuda:{index}" for index in range(len(k.facts.cuda_devices)))])


REFUSALS: dict[str, tuple[Refusal, ...]] = {
    "device": (
        Refusal(
            _bad_device,
            lambda k: f"device={k.said['device']!r} is not here. This machine has: {_devices(k)}.",
        ),
    ),
    "precision": (
        Refusal(
            lambda k: k.said.get("precision") == "tf32" and not (k.on_gpu and k.facts.tf32),
            lambda k: (
                f"precision='tf32' needs an NVIDIA GPU of the Ampere generation or newer, and the "
                f"device is {k['device']}. Use precision='fp32' or 'bf16'."
            ),
        ),
    ),
    "batch_size": (_refuse_loader("batch_size", "batch_size"),),
    "micro_batch_size": (
        Refusal(
            lambda k: k.said.get("micro_batch_size", 0) > k["batch_size"],
            lambda k: (
                f"micro_batch_size={k.said['micro_batch_size']} is larger than the whole batch of "
                f"{k['batch_size']}. Use at most {k['batch_size']}, or a larger batch_size."
            ),
        ),
    ),
    "data.shuffle": (_refuse_loader("data.shuffle", "shuffle"),),
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
    "optim.name": (
        Refusal(
            lambda k: k.given.own_optimizer and any(n.startswith("optim.") for n in k.said),
            lambda k: (
                f"{next(n for n in k.said if n.startswith('optim.'))} is said, but the Task brings "
                "its own optimizer, which takes none of these options. Set it there, or leave "
                "Task(optimizer=...) out."
            ),
        ),
    ),
    "optim.betas": (_refuse_foreign("optim.betas", "adamw"),),
    "optim.eps": (_refuse_foreign("optim.eps", "adamw"),),
    "optim.momentum": (_refuse_foreign("optim.momentum", "sgd"),),
    "optim.nesterov": (
        _refuse_foreign("optim.nesterov", "sgd"),
        Refusal(
            lambda k: bool(k.said.get("optim.nesterov")) and not k["optim.momentum"],
            lambda k: "optim.nesterov=True needs a momentum: say optim.momentum=0.9.",
        ),
    ),
    "schedule.min_lr_ratio": (_refuse_without_floor("schedule.min_lr_ratio"),),
    "schedule.floor": (_refuse_without_floor("schedule.floor"),),
    "max_grad_norm": (
        Refusal(
            lambda k: k.said.get("max_grad_norm", "off") != "off" and "clip_value" in k.said,
            lambda k: (
                f"max_grad_norm={k.said['max_grad_norm']} and clip_value={k.said['clip_value']} "
                "are two ways to clip. Say one of them."
            ),
        ),
        Refusal(
            lambda k: k.warmup() > k["total_steps"],
            lambda k: (
                f"schedule.warmup={k['schedule.warmup']!r} is {k.warmup():g} steps, longer than "
                f"the run of {k['total_steps']} steps. Use a shorter warm-up or a longer run."
            ),
        ),
    ),
    "max_nonfinite": (
        Refusal(
            lambda k: "max_nonfinite" in k.said and k["on_nonfinite"] == "raise",
            lambda k: "max_nonfinite counts skipped steps: say on_nonfinite='skip' with it.",
        ),
    ),
    "scaler.init_scale": (
        Refusal(
            lambda k: k["precision"] != "fp16" and any(n.startswith("scaler.") for n in k.said),
            lambda k: (
                f"{next(n for n in k.said if n.startswith('scaler.'))} is said, but only fp16 "
                f"scales the loss and precision is {k['precision']}. Leave it out, or say "
                "precision='fp16'."
            ),
        ),
    ),
    "validation.every": (_refuse_without_val("validation.every"),),
    "validation.batch_size": (
        _refuse_without_val("validation.batch_size"),
        Refusal(
            lambda k: any(
                size != k.said.get("validation.batch_size", size)
                for size in k.given.val_batch_sizes
            ),
            lambda k: (
                f"validation.batch_size={k.said['validation.batch_size']}, but the val DataLoader "
                f"has batch_size={k.given.val_batch_sizes[0]}. Say it in one place."
            ),
        ),
    ),
    "validation.metric": (
        Refusal(
            lambda k: (
                "validation.metric" in k.said
                and (not k.given.val_sets or k.metric() not in k.metric_names())
            ),
            lambda k: (
                f"validation.metric={k.said['validation.metric']!r} is not measured. "
                f"Measured: {', '.join(k.metric_names()) or 'nothing, there is no val data'}."
            ),
        ),
    ),
    "validation.mode": (
        _refuse_without_val("validation.mode"),
        Refusal(
            lambda k: k.metric_mode() is None and "validation.mode" not in k.said,
            lambda k: (
                f"Whether a larger {k['validation.metric']} is better is not known. "
                "Say validation.mode='max' or 'min'."
            ),
        ),
    ),
    "early_stop.patience": (
        Refusal(
            lambda k: "early_stop.patience" in k.said and not k.given.val_sets,
            lambda k: "early_stop.patience needs evaluations: give the Task val data.",
        ),
    ),
    "early_stop.min_delta": (
        Refusal(
            lambda k: "early_stop.min_delta" in k.said and k["early_stop.patience"] is None,
            lambda k: "early_stop.min_delta needs a patience: say early_stop.patience=5.",
        ),
    ),
}
