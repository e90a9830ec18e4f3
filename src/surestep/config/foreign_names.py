"""Option names of other libraries, and surestep's name for each.

Used for Python, TOML and the command line. Covers Hugging Face's TrainingArguments, Lightning's
Trainer, Accelerate, Keras, and the arguments of torch's optimizers and schedulers.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from surestep.base.written import Form, flag, written
from surestep.config.choices import VALUES, is_off, key

Known = Mapping[str, Any]  # the other options that were set, under the names as typed


class Figure(NamedTuple):
    """A value computed from several options, and how it was computed."""

    value: Any
    how: str


class Foreign(NamedTuple):
    """What an option of another library is called in surestep.

    Attributes:
        ours: full name of the option; "" if it is not an option.
        value: computes the value from the one that was typed and the other options that were set.
        text: what to type if it is not an option, or what else to know.
        command: the same for the command line, if that differs.
    """

    ours: str
    value: Callable[[Any, Known], Any] = lambda value, _: value
    text: str = ""
    command: str = ""


def describe(name: str, value: Any, known: Known, form: Form, group: str) -> str | None:
    """Return what to type instead of an option of another library.

    Args:
        name: as typed, without its group.
        value: as typed.
        known: the other options that were set.
        form: Python, TOML or the command line.
        group: in Python, the call it was typed into; "" for Config(...).

    Returns:
        A sentence that ends with the text to type; None if no library has such an option.
    """
    entry = FOREIGN.get(name.replace("-", "_"))
    if entry is None:
        return None
    text = entry.command if form == "cli" and entry.command else entry.text
    if not entry.ours:
        return f"{text.format(value=value)}"
    own = entry.value(value, known)
    own, how = own if isinstance(own, Figure) else (own, "")
    what_else = f" {text}" if text else ""
    figure = f" ({how})" if how else ""
    ours = flag(entry.ours) if form == "cli" else entry.ours
    meant = f"Did you mean {ours!r}?{what_else}"
    return f"{meant} Write {written(entry.ours, own, form, group)}{figure}"


def _number(value: Any) -> float | None:
    """Parse a number, which the command line passes as text; None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number


def _steps(value: Any, _: Known) -> Any:
    number = _number(value)
    return value if number is None else f"{number} steps"


def _epochs(value: Any, _: Known) -> Any:
    number = _number(value)
    return value if number is None else f"{number} epochs"


def _percent(value: Any, _: Known) -> Any:
    number = _number(value)
    return value if number is None else f"{round(number * 100, 6):g}%"


def _period(value: Any, _: Known) -> Any:
    """Convert Lightning's val_check_interval: a share of an epoch, or batches."""
    number = _number(value)
    if number is None:
        return value
    return f"{number} epochs" if isinstance(value, float) or number < 1 else f"{number} steps"


def _share_or_steps(value: Any, _: Known) -> Any:
    """Convert Hugging Face's eval_steps: steps, or a share of the run."""
    number = _number(value)
    if number is None:
        return value
    return f"{number * 100:g}%" if number < 1 else f"{number} steps"


def _strategy(value: Any, _: Known) -> Any:
    """Convert Hugging Face's strategies: "epoch", "steps" or "no"."""
    word = key(str(value))
    return {"epoch": "1 epoch", "steps": "500 steps"}.get(word, "off")


def _switch(on: Any, off: Any) -> Callable[[Any, Known], Any]:
    """Return one value for true and another for false."""
    return lambda value, _: off if key(str(value)) in ("false", "no", "off", "0", "none") else on


def _always(value: Any) -> Callable[[Any, Known], Any]:
    return lambda *_: value


def _word(option: str) -> Callable[[Any, Known], Any]:
    """Return a function that translates a value of another library."""

    def read(value: Any, _: Known) -> Any:
        meant = VALUES.get(option, {}).get(key(str(value)), value)
        return meant if isinstance(meant, str) else value

    return read


def _norm(value: Any, _: Known) -> Any:
    return "off" if is_off("max_grad_norm", value) else value


def _metric(value: Any, _: Known) -> str:
    """Return a metric's name without the prefix of its split."""
    name = str(value).removeprefix("eval_").removeprefix("val_")
    return "accuracy" if name == "acc" else name


def _accumulation(value: Any, known: Known) -> Any:
    """Compute micro_batch_size from the number of accumulation steps."""
    parts = _number(value)
    size = _number(known.get("batch_size"))
    per_device = _number(known.get("per_device_train_batch_size"))
    if parts is None or parts < 1:
        return value
    if size is None and per_device is not None:
        return Figure(
            per_device,
            f"of batch_size {per_device * parts:g} = {per_device:g} x {parts:g}, on one device",
        )
    if size is None:
        return Figure(max(1, int(64 // parts)), f"batch_size / {parts:g}, here for a batch of 64")
    return Figure(max(1, int(size // parts)), f"batch_size {size:g} / {parts:g}")


def _device_batch(value: Any, known: Known) -> Any:
    """Compute the global batch size."""
    per_device, parts = _number(value), _number(known.get("gradient_accumulation_steps"))
    if per_device is None or parts is None:
        return Figure(
            value, "times the number of devices: batch_size counts the samples of one step"
        )
    return Figure(
        int(per_device * parts), f"{per_device:g} x {parts:g}, times the number of devices"
    )


def _betas(first: bool) -> Callable[[Any, Known], Any]:
    def read(value: Any, known: Known) -> Any:
        one = known.get("adam_beta1", known.get("beta1", known.get("beta_1", 0.9)))
        two = known.get("adam_beta2", known.get("beta2", known.get("beta_2", 0.999)))
        one, two = (value, two) if first else (one, value)
        return (_number(one), _number(two))

    return read


def _names(entry: Foreign, *names: str) -> dict[str, Foreign]:
    return dict.fromkeys(names, entry)


def _say(text: str, command: str = "") -> Foreign:
    return Foreign("", text=f"Write {text}", command=f"Write {command}" if command else "")


_CALLBACKS = _say("Trainer(task, config, callbacks=[...])", "callbacks = [...] in the recipe")
_RUN = _say("Trainer(task, config, run='runs/mine')", "--run runs/mine")
_RESUME = _say(
    "Trainer(task, config, run='runs/mine').fit(), which resumes what the folder holds",
    "--run runs/mine, which resumes what the folder holds",
)
_LENGTH = Foreign(
    "epochs", text="The schedule ends with the run, whose length is epochs or max_steps."
)
_OF_TASK = "Task({0}=...): it is what is trained, not how"
_PROCESSES = _say("surestep train RECIPE --nproc {value}", "--nproc {value}")

FOREIGN: Final[Mapping[str, Foreign]] = {
    # Length and batch size.
    **_names(Foreign("epochs"), "max_epochs", "num_epochs", "num_train_epochs", "n_epochs"),
    **_names(
        Foreign("max_steps"),
        *("num_training_steps", "total_steps", "max_iters", "max_train_steps", "iterations"),
    ),
    **_names(
        Foreign("batch_size", _device_batch),
        *("per_device_train_batch_size", "train_micro_batch_size_per_gpu", "train_batch_size"),
    ),
    **_names(
        Foreign("validation.batch_size"),
        *("per_device_eval_batch_size", "eval_batch_size", "val_batch_size"),
    ),
    **_names(
        Foreign("micro_batch_size", _accumulation),
        *("gradient_accumulation_steps", "accumulate_grad_batches", "grad_accum_steps"),
        *("accumulation_steps", "grad_accumulation_steps"),
    ),
    "auto_find_batch_size": _say("micro_batch_size=16, which fits memory and changes no update"),
    # The optimizer.
    "learning_rate": Foreign("optim.lr"),
    **_names(Foreign("optim.lr"), "max_lr", "peak_lr", "initial_lr", "init_lr"),
    **_names(Foreign("optim.weight_decay"), "wd", "decay_weight", "weight_decay_rate"),
    **_names(Foreign("optim.name", _word("optim.name")), "optimizer", "optimizer_name"),
    **_names(Foreign("optim.betas", _betas(True)), "adam_beta1", "beta1", "beta_1"),
    **_names(Foreign("optim.betas", _betas(False)), "adam_beta2", "beta2", "beta_2"),
    **_names(Foreign("optim.eps"), "adam_epsilon", "epsilon"),
    **_names(Foreign("optim.implementation", _switch("fused", "foreach")), "fused"),
    **_names(Foreign("optim.implementation", _switch("foreach", "for_loop")), "foreach"),
    **_names(Foreign("optim.groups"), "param_groups", "parameter_groups"),
    **_names(Foreign("optim.layerwise_lr_decay"), "layerwise_lr_decay", "llrd", "lr_layer_decay"),
    # Clipping and non-finite values.
    **_names(
        Foreign("max_grad_norm", _norm),
        *("gradient_clip_val", "gradient_clipping", "clip_grad_norm", "grad_clip", "max_norm"),
        *("clipnorm", "global_clipnorm", "grad_clip_norm", "clip_norm"),
    ),
    **_names(Foreign("clip_value"), "clipvalue", "clip_grad_value", "grad_clip_value"),
    "gradient_clip_algorithm": _say("max_grad_norm=1.0 for the norm, or clip_value=1.0"),
    **_names(
        _say("on_nonfinite='raise', which names the layer and the samples"),
        *("detect_anomaly", "terminate_on_nan", "track_grad_norm"),
    ),
    # The schedule.
    **_names(
        Foreign("schedule.name", _word("schedule.name")),
        *("lr_scheduler_type", "lr_scheduler", "scheduler", "lr_schedule", "lr_policy"),
    ),
    **_names(Foreign("schedule.warmup", _steps), "warmup_steps", "num_warmup_steps"),
    **_names(Foreign("schedule.warmup", _percent), "warmup_ratio", "warmup_fraction"),
    **_names(Foreign("schedule.warmup", _epochs), "warmup_epochs", "num_warmup_epochs"),
    **_names(Foreign("schedule.min_lr"), "eta_min", "lr_min", "lr_end", "base_lr", "final_lr"),
    "min_lr_rate": Foreign("schedule.min_lr_ratio"),
    "T_max": _LENGTH,
    "num_cycles": Foreign("schedule.cycles"),
    "num_decay_steps": Foreign("schedule.decay", _steps),
    "lr_decay_factor": Foreign("schedule.gamma"),
    **_names(
        _say("Task(schedule=lambda step, total: 1.0), a function of the steps taken"),
        *("lr_lambda", "lr_scheduler_kwargs"),
    ),
    "last_epoch": _RESUME,
    # When to evaluate, save and log.
    "eval_steps": Foreign("validation.every", _share_or_steps),
    "val_check_interval": Foreign("validation.every", _period),
    **_names(
        Foreign("validation.every", _epochs),
        *("check_val_every_n_epoch", "validation_freq", "eval_every_n_epochs"),
    ),
    **_names(Foreign("validation.every", _steps), "eval_every", "eval_interval", "eval_freq"),
    **_names(
        Foreign("validation.every", _strategy), "eval_strategy", "evaluation_strategy", "do_eval"
    ),
    "save_steps": Foreign("checkpoint.every", _share_or_steps),
    **_names(
        Foreign("checkpoint.every", _steps),
        *("every_n_train_steps", "save_every", "save_interval", "checkpointing_steps", "save_freq"),
    ),
    "every_n_epochs": Foreign("checkpoint.every", _epochs),
    "save_strategy": Foreign("checkpoint.every", _strategy),
    "enable_checkpointing": Foreign("checkpoint.every", _switch("1 epoch", "off")),
    **_names(Foreign("checkpoint.keep_last"), "save_total_limit", "total_limit", "max_to_keep"),
    **_names(Foreign("checkpoint.keep_best"), "save_top_k"),
    "save_best_only": Foreign("checkpoint.keep_best", _switch(1, 0)),
    "save_last": Foreign("checkpoint.keep_last", _switch(1, 1)),
    "save_weights_only": _say(
        "surestep ckpt export RUN, which writes the weights alone; a run resumes from all of it"
    ),
    "logging_steps": Foreign("logging.every", _share_or_steps),
    **_names(
        Foreign("logging.every", _steps),
        *("log_every_n_steps", "log_every", "log_interval", "print_freq", "log_freq"),
    ),
    "logging_strategy": Foreign("logging.every", _strategy),
    **_names(Foreign("logging.progress", _switch("quiet", "auto")), "disable_tqdm"),
    **_names(Foreign("logging.progress", _switch("auto", "quiet")), "enable_progress_bar"),
    "verbose": Foreign("logging.progress", _switch("auto", "quiet")),
    **_names(Foreign("validation.metric", _metric), "monitor", "metric_for_best_model"),
    "greater_is_better": Foreign("validation.mode", _switch("max", "min")),
    **_names(Foreign("early_stop.patience"), "early_stopping_patience", "early_stopping"),
    "early_stopping_threshold": Foreign("early_stop.min_delta"),
    "load_best_model_at_end": _say("run.load_model(model, which='best') after fit()"),
    **_names(
        _CALLBACKS,
        *("callbacks", "callback", "logger", "loggers", "report_to", "log_with", "trackers"),
        *("tensorboard", "wandb", "run_name", "plugins"),
    ),
    # Run folder and trial runs.
    **_names(
        _RUN,
        *("output_dir", "default_root_dir", "project_dir", "logging_dir", "save_dir", "dirpath"),
        *("checkpoint_dir", "overwrite_output_dir"),
    ),
    **_names(_RESUME, "resume_from_checkpoint", "ckpt_path", "resume", "restore_best_weights"),
    **_names(_say("surestep train RECIPE --dry-run", "--dry-run"), "fast_dev_run"),
    **_names(
        _say("surestep train RECIPE --overfit 64 (samples)", "--overfit 64 (samples)"),
        *("overfit_batches", "overfit_pct"),
    ),
    **_names(Foreign("limit_train_batches"), "train_batches", "steps_per_epoch"),
    **_names(Foreign("limit_val_batches"), "eval_batches", "validation_steps"),
    **_names(Foreign("validation.on_start"), "eval_on_start"),
    **_names(Foreign("early_stop.start", _epochs), "start_from_epoch"),
    # Precision and speed.
    **_names(Foreign("precision", _switch("bf16", "fp32")), "bf16"),
    **_names(Foreign("precision", _switch("fp16", "fp32")), "fp16", "half", "amp", "use_amp"),
    "tf32": Foreign("precision", _switch("tf32", "fp32")),
    **_names(
        Foreign("precision", _word("precision")),
        *("mixed_precision", "dtype", "torch_dtype", "half_precision_backend"),
    ),
    **_names(
        Foreign("activation_checkpointing", _switch("on", "off")),
        *("gradient_checkpointing", "checkpoint_activations", "use_checkpoint"),
    ),
    **_names(
        Foreign("compile", _switch("default", "off")),
        *("torch_compile", "jit_compile", "use_compile", "compile_model"),
    ),
    **_names(Foreign("compile"), "torch_compile_mode", "compile_mode"),
    **_names(Foreign("cudnn_benchmark"), "benchmark"),
    **_names(Foreign("deterministic"), "full_determinism", "use_deterministic_algorithms"),
    **_names(Foreign("seed"), "random_seed", "random_state", "data_seed", "manual_seed"),
    "profiler": Foreign("profile", _always("10:15")),
    **_names(Foreign("channels_last", _switch(True, False)), "memory_format"),
    **_names(Foreign("sdpa_backend", _always("flash")), "attn_implementation", "flash_attention"),
    # Devices and processes.
    "accelerator": Foreign("device", _word("device")),
    **_names(Foreign("device", _switch("cpu", "cuda")), "use_cpu", "no_cuda", "cpu"),
    **_names(Foreign("device", _switch("cuda", "cpu")), "use_gpu", "cuda", "gpu"),
    **_names(_PROCESSES, "devices", "num_processes", "gpus", "n_gpu", "world_size", "nproc"),
    "num_nodes": _say("torchrun --nnodes {value} -m surestep train RECIPE"),
    **_names(
        Foreign("parallel.strategy", _word("parallel.strategy")),
        *("strategy", "distributed_type", "distributed_strategy", "distribute_strategy"),
    ),
    "fsdp": Foreign("parallel.strategy", _always("fsdp")),
    "sharding_strategy": Foreign("parallel.shard"),
    **_names(Foreign("parallel.find_unused_parameters"), "ddp_find_unused_parameters"),
    "sync_batch_norm": Foreign("parallel.sync_batchnorm"),
    "zero_stage": Foreign("parallel.zero_stage"),
    **_names(Foreign("parallel.timeout_s"), "ddp_timeout", "timeout"),
    **_names(
        Foreign("parallel.deepspeed", text="With parallel.strategy='deepspeed'."),
        *("deepspeed", "deepspeed_config", "ds_config"),
    ),
    # Data.
    **_names(Foreign("data.num_workers"), "dataloader_num_workers", "workers", "n_workers"),
    "dataloader_pin_memory": Foreign("data.pin_memory"),
    "dataloader_drop_last": Foreign("data.drop_last"),
    "dataloader_persistent_workers": Foreign("data.persistent_workers"),
    "dataloader_prefetch_factor": Foreign("data.prefetch_factor"),
    **_names(Foreign("exclude_samples"), "exclude_samples", "ignore_samples"),
    **_names(_say("Task(sampler=surestep.samplers.by_length(...))"), "group_by_length"),
    # Averages.
    **_names(Foreign("average.kind", _switch("ema", "none")), "use_ema", "ema"),
    **_names(Foreign("average.kind", _switch("swa", "none")), "use_swa", "swa"),
    **_names(Foreign("average.decay"), "ema_decay", "ema_momentum"),
    **_names(Foreign("average.lr"), "swa_lr", "swa_lrs"),
    # Parts of the Task.
    **_names(
        _say(_OF_TASK.format("loss")), "loss", "loss_fn", "criterion", "label_smoothing_factor"
    ),
    **_names(_say(_OF_TASK.format("metrics")), "metrics", "compute_metrics"),
    **_names(_say(_OF_TASK.format("collate_fn")), "collate_fn", "data_collator"),
    **_names(_say(_OF_TASK.format("model")), "model", "model_init"),
    **_names(
        _say(_OF_TASK.format("train")),
        *("train_dataset", "train_dataloader", "train_dataloaders", "train_data"),
    ),
    **_names(
        _say(_OF_TASK.format("val")),
        *("eval_dataset", "val_dataset", "val_dataloader", "val_dataloaders", "validation_data"),
    ),
}
