"""Other spellings: what values and option names of other libraries mean.

A spelling with one clear meaning is accepted. One that could mean two things, and an option name of
another library, is an error that says what to set instead.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from surestep.config.not_set import NOT_SET

# Options that can be switched off, and the value that means off.
OFF: Final[Mapping[str, object]] = {
    **dict.fromkeys(("max_grad_norm", "clip_value", "profile", "max_time", "exclude_samples")),
    **dict.fromkeys(("limit_train_batches", "limit_val_batches", "validation.every")),
    **dict.fromkeys(("early_stop.patience", "early_stop.start", "checkpoint.every")),
    **dict.fromkeys(("checkpoint.keep_every", "parallel.replica_check_every")),
    **dict.fromkeys(("logging.every", "logging.histograms", "checkpoint.mirror", "report.samples")),
    **dict.fromkeys(("data.keep_decoded",)),
    **dict.fromkeys(("optim.layerwise_lr_decay", "optim.line_search_fn", "logging.tracker_wait")),
    **dict.fromkeys(("compile", "activation_checkpointing", "on_spike", "parallel.offload"), "off"),
    "optim.weight_decay": 0.0,
    "schedule.warmup": "0%",
    "average.kind": "none",
}
# Options that are numbers, with the word that they also take.
WORDS: Final[Mapping[str, str]] = {
    "optim.lr": "find",
    "micro_batch_size": "fit",
    "validation.batch_size": "fit",
}
# Options for which 0 does not mean off: with a patience of 0, Lightning and Keras stop at the first
# evaluation without improvement; 0 may be the index of a sample or the name of a module.
_ZERO_IS_A_VALUE = (
    *("early_stop.patience", "exclude_samples", "optim.layerwise_lr_decay", "max_time"),
    *("limit_train_batches", "limit_val_batches", "activation_checkpointing"),
)
_OFF_WORDS = ("off", "none", "no", "false", "never", "null", "disable", "disabled")
_TRUE = "true on yes"

# For each option, the values with their other spellings, as `key` normalizes them.
_SPELLINGS: Final[Mapping[str, Mapping[Any, str]]] = {
    "device": {NOT_SET: "auto", "cuda": "gpu cuda nvidia", "cpu": "cpu"},
    "precision": {
        "fp32": "32 32true float32 float single full no",
        "fp16": "16 16mixed float16 half fp16mixed mixedfloat16",
        "bf16": "bf16mixed bfloat16 mixedbfloat16 bfloat16mixed",
    },
    "compile": {"default": f"{_TRUE} 1 inductor"},
    "activation_checkpointing": {"on": _TRUE},
    "on_nonfinite": {"raise": "error", "skip": "ignore"},
    "optim.name": {
        "adamw": "adamwtorch adamwtorchfused adamwhf adamwfused",
        "adamw8bit": "adamwbnb8bit adamw8bits",
    },
    "optim.implementation": {"for_loop": "forloop single singletensor"},
    "schedule.name": {
        "constant": "constantwithwarmup fixed off none no false",
        "linear": "linearwithwarmup lineardecay warmuplinear",
        "cosine": "cosineannealinglr cosineannealing cosinedecay cosinewithwarmup cosinewithminlr "
        "cosinelr warmupcosine",
        "cosine_restarts": "cosinewithrestarts cosineannealingwarmrestarts cosinewithhardrestarts "
        "cosinehardrestarts cosinewithhardrestartswithwarmup sgdr",
        "step": "steplr",
        "multi_step": "multisteplr",
        "exponential": "exponentiallr",
        "polynomial": "polynomiallr poly polynomialdecay",
        "inverse_sqrt": "inversesquareroot noam rsqrt",
        "warmup_stable_decay": "wsd",
        "one_cycle": "onecyclelr 1cycle",
        "cyclic": "cycliclr",
        "reduce_on_plateau": "plateau reducelronplateau reducelr",
    },
    "schedule.anneal_strategy": {"cos": "cosine"},
    "schedule.threshold_mode": {"rel": "relative", "abs": "absolute"},
    "average.kind": {"ema": "exponential", "swa": "stochastic"},
    "parallel.strategy": {
        "ddp": "distributeddataparallel ddpspawn multigpu",
        "fsdp": "fsdp2 fsdp1 fullyshardeddataparallel fullyshard",
        "single": "singledevice 1 off none no false",
    },
    "parallel.shard": {
        "full": "fsdp zero3 true 1 fullshard",
        "grad_op": "zero2 2 shardgradop",
        "hybrid": "4 hybridshard",
    },
    "parallel.offload": {"all": "true cpu parameters params"},
    "logging.progress": {
        "auto": f"{_TRUE} 1",
        "bar": "tqdm rich progressbar",
        "plain": "text lines log",
        "quiet": "silent 0 off none no false",
    },
    "validation.mode": {
        "min": "lower smaller minimize less",
        "max": "higher larger greater maximize",
    },
}
# For each option, what to set instead of values that could mean two things.
_UNCLEAR: Final[Mapping[str, Mapping[str, str]]] = {
    "precision": {
        "parameters of 16 bits belong to the model. For fp32 parameters and 16-bit arithmetic use "
        "precision='bf16' or 'fp16'": "16true bf16true",
        "double precision belongs to the model. Call model.double(), and set precision='fp32'": (
            "64 64true float64 fp64 double"
        ),
    },
    "compile": {"this mode is not offered. Use 'max-autotune'": "maxautotunenocudagraphs"},
    "schedule.name": {
        "torch's LinearLR rises from a third of the learning rate. Use 'constant' with "
        "schedule.warmup='5 steps'; 'linear' falls to the end of the run": "linearlr",
        "torch's ConstantLR stays at a third of the learning rate for 5 steps. Use 'constant', "
        "with schedule.warmup='5 steps' or without": "constantlr",
        "the Task takes a function. Use Task(schedule=lambda step, total: 1.0)": (
            "lambdalr multiplicativelr sequentiallr chainedscheduler chain"
        ),
    },
    "early_stop.patience": {"set a number of evaluations, such as early_stop.patience=5": _TRUE},
    "average.kind": {"set average.kind='ema' or 'swa'": _TRUE},
    "parallel.strategy": {
        "torch replaced DataParallel by DistributedDataParallel. Use 'ddp'": "dp dataparallel",
        "it is two options. Set parallel.strategy='ddp' and parallel.find_unused_parameters=True": (
            "ddpfindunusedparameterstrue"
        ),
        "it is two options. Set parallel.strategy='deepspeed' and parallel.zero_stage=1, 2 or 3": (
            "deepspeedstage1 deepspeedstage2 deepspeedstage3 zero1 zero2 zero3"
        ),
    },
    "parallel.shard": {
        "without sharding it is DDP. Set parallel.strategy='ddp'": "ddp 3 none noshard",
        "only full sharding is hybrid. Use 'hybrid'": "hybridshardzero2",
    },
}
# Option names of other libraries: Hugging Face's TrainingArguments, Lightning's Trainer,
# Accelerate, Keras, torch. {r} is the value as Python writes it, {v} the value as text.
_OPTIONS: Final[Mapping[str, str]] = {
    "epochs={r}": "max_epochs num_epochs num_train_epochs n_epochs",
    "epochs or max_steps; the schedule ends with the run": "T_max",
    "max_steps={r}": "num_training_steps total_steps max_iters max_train_steps iterations",
    "batch_size, which counts the samples of one step: per device x accumulation x devices": (
        "per_device_train_batch_size train_micro_batch_size_per_gpu train_batch_size"
    ),
    "validation.batch_size={r}": "per_device_eval_batch_size eval_batch_size val_batch_size",
    "micro_batch_size, which is batch_size / accumulation steps": (
        "gradient_accumulation_steps accumulate_grad_batches grad_accum_steps accumulation_steps "
        "grad_accumulation_steps"
    ),
    "micro_batch_size='fit', which takes a step that runs out of memory again": (
        "auto_find_batch_size find_executable_batch_size auto_scale_batch_size"
    ),
    "optim.lr={r}": "learning_rate max_lr peak_lr initial_lr init_lr",
    "optim.lr='find'; `surestep lr-find RECIPE` shows the curves": "auto_lr_find lr_find",
    "optim.weight_decay={r}": "wd decay_weight weight_decay_rate",
    "optim.name={r}": "optimizer optimizer_name",
    "optim.betas=(0.9, 0.999)": "adam_beta1 beta1 beta_1 adam_beta2 beta2 beta_2",
    "optim.eps={r}": "adam_epsilon epsilon",
    "optim.implementation='fused' or 'foreach'": "fused foreach",
    "optim.groups={r}": "param_groups parameter_groups",
    "optim.layerwise_lr_decay={r}": "layerwise_lr_decay llrd lr_layer_decay",
    "max_grad_norm={r}": (
        "gradient_clip_val gradient_clipping clip_grad_norm grad_clip max_norm clipnorm "
        "global_clipnorm grad_clip_norm clip_norm"
    ),
    "clip_value={r}": "clipvalue clip_grad_value grad_clip_value",
    "max_grad_norm=1.0 for the norm, or clip_value=1.0": "gradient_clip_algorithm",
    "on_nonfinite='raise', which names the layer and the samples": (
        "detect_anomaly terminate_on_nan track_grad_norm"
    ),
    "schedule.name={r}": "lr_scheduler_type lr_scheduler scheduler lr_schedule lr_policy",
    "schedule.warmup='{v} steps'": "warmup_steps num_warmup_steps",
    "schedule.warmup={r}": "warmup_ratio warmup_fraction",
    "schedule.warmup='{v} epochs'": "warmup_epochs num_warmup_epochs",
    "schedule.min_lr={r}": "eta_min lr_min lr_end base_lr final_lr",
    "schedule.min_lr_ratio={r}": "min_lr_rate",
    "schedule.cycles={r}": "num_cycles",
    "schedule.decay='{v} steps'": "num_decay_steps",
    "schedule.gamma={r}": "lr_decay_factor",
    "Task(schedule=lambda step, total: 1.0)": "lr_lambda lr_scheduler_kwargs chain",
    "torchrun --log-dir DIR --redirects 3, a log file for each rank": "ranks log_ranks",
    "the environment variable NCCL_DEBUG": "nccl_debug",
    "validation.every='1 epoch', '0.25 epochs' or '100 steps'": "val_check_interval",
    "validation.every='{v} steps', or a share of the run such as '10%'": (
        "eval_steps eval_every eval_interval eval_freq"
    ),
    "validation.every='{v} epochs'": "check_val_every_n_epoch validation_freq eval_every_n_epochs",
    "validation.every='1 epoch', '500 steps' or 'off'": "eval_strategy evaluation_strategy do_eval",
    "checkpoint.every='{v} steps', or a share of the run such as '10%'": (
        "save_steps every_n_train_steps save_every save_interval checkpointing_steps save_freq"
    ),
    "checkpoint.every='{v} epochs'": "every_n_epochs",
    "checkpoint.every='1 epoch' or 'off'": "save_strategy enable_checkpointing",
    "checkpoint.keep_last={r}": "save_total_limit total_limit max_to_keep",
    "checkpoint.keep_best={r}": "save_top_k",
    "checkpoint.keep_best=1 and checkpoint.keep_last=1": "save_best_only save_last",
    "surestep ckpt export RUN, which writes the weights alone": "save_weights_only",
    "logging.every='{v} steps', or a share of the run such as '1%'": (
        "logging_steps log_every_n_steps log_every log_interval print_freq log_freq"
    ),
    "logging.every='1 epoch' or 'off'": "logging_strategy",
    "logging.progress='auto' or 'quiet'": "disable_tqdm enable_progress_bar verbose",
    "validation.metric='loss', or the name of a metric": "monitor metric_for_best_model",
    "validation.mode='max' or 'min'": "greater_is_better",
    "early_stop.patience={r}": "early_stopping_patience early_stopping",
    "early_stop.min_delta={r}": "early_stopping_threshold",
    "early_stop.start='{v} epochs'": "start_from_epoch",
    "run.load_model(model, which='best') after fit()": "load_best_model_at_end",
    "Trainer(task, config, callbacks=[...])": "callbacks callback plugins",
    "logging.trackers='tensorboard', 'mlflow' or 'wandb'; a run folder has all numbers anyway": (
        "logger loggers report_to log_with tracking trackers tracker tensorboard wandb mlflow"
    ),
    "Trainer(task, config, run='runs/mine'), or --run runs/mine": (
        "run_name output_dir default_root_dir project_dir logging_dir save_dir dirpath "
        "checkpoint_dir overwrite_output_dir"
    ),
    "the same run folder again, which resumes: Trainer(task, config, run='runs/mine'), or "
    "--run runs/mine": ("resume_from_checkpoint ckpt_path resume restore_best_weights last_epoch"),
    "surestep train RECIPE --dry-run": "fast_dev_run",
    "surestep train RECIPE --overfit 64 (samples)": "overfit_batches overfit_pct",
    "limit_train_batches={r}": "train_batches steps_per_epoch",
    "limit_val_batches={r}": "eval_batches validation_steps",
    "validation.on_start={r}": "eval_on_start",
    "precision='bf16', 'fp16', 'tf32' or 'fp32'": (
        "bf16 fp16 half amp use_amp tf32 mixed_precision dtype torch_dtype half_precision_backend"
    ),
    "activation_checkpointing={r}": "gradient_checkpointing checkpoint_activations use_checkpoint",
    "compile={r}": (
        "torch_compile jit_compile use_compile compile_model torch_compile_mode compile_mode"
    ),
    "cudnn_benchmark={r}": "benchmark",
    "deterministic={r}": "full_determinism use_deterministic_algorithms",
    "seed={r}": "random_seed random_state data_seed manual_seed",
    "profile='10:15'": "profiler",
    "channels_last=True": "memory_format",
    "sdpa_backend='flash'": "attn_implementation flash_attention",
    "device='cuda' or 'cpu'": "accelerator use_cpu no_cuda cpu use_gpu cuda gpu",
    "surestep train RECIPE --nproc {v}": "devices num_processes gpus n_gpu world_size nproc",
    "torchrun --nnodes {v} -m surestep train RECIPE": "num_nodes",
    "parallel.strategy={r}": "strategy distributed_type distributed_strategy distribute_strategy",
    "parallel.strategy='fsdp'": "fsdp",
    "parallel.shard={r}": "sharding_strategy",
    "parallel.find_unused_parameters={r}": "ddp_find_unused_parameters",
    "parallel.sync_batchnorm={r}": "sync_batch_norm",
    "parallel.zero_stage={r}": "zero_stage",
    "parallel.timeout_s={r}": "ddp_timeout timeout",
    "parallel.deepspeed={r}": "deepspeed deepspeed_config ds_config",
    "data.num_workers={r}": "dataloader_num_workers workers n_workers",
    "data.pin_memory={r}": "dataloader_pin_memory",
    "data.drop_last={r}": "dataloader_drop_last",
    "data.persistent_workers={r}": "dataloader_persistent_workers",
    "data.prefetch_factor={r}": "dataloader_prefetch_factor",
    "exclude_samples={r}": "skip_samples ignore_samples",
    "Task(sampler=surestep.samplers.by_length(...))": "group_by_length",
    "average.kind='ema'": "use_ema ema",
    "average.kind='swa'": "use_swa swa",
    "average.decay={r}": "ema_decay ema_momentum",
    "average.lr={r}": "swa_lr swa_lrs",
    "Task(loss=...)": "loss loss_fn criterion label_smoothing_factor",
    "Task(metrics=...)": "metrics compute_metrics",
    "Task(collate_fn=...)": "collate_fn data_collator",
    "Task(model=...)": "model model_init",
    "Task(train=...)": "train_dataset train_dataloader train_dataloaders train_data",
    "Task(val=...)": "eval_dataset val_dataset val_dataloader val_dataloaders validation_data",
}

# What is off by default, so that switching it off needs no option.
_OFF_BY_DEFAULT: Final = (
    "logger loggers report_to log_with tracking trackers tracker tensorboard wandb mlflow "
    "fast_dev_run overfit_batches overfit_pct use_ema ema use_swa swa profiler fsdp "
    "auto_find_batch_size group_by_length save_weights_only"
)
# What to set instead of True, where an option takes no bool.
_FOR_TRUE: Final[Mapping[str, str]] = {
    "early_stop.patience": "5",
    "max_grad_norm": "1.0",
    "clip_value": "1.0",
    "schedule.name": "'cosine'",
    "optim.layerwise_lr_decay": "0.75",
}


def _by_spelling(table: Mapping[Any, str]) -> dict[str, Any]:
    return {word: meaning for meaning, words in table.items() for word in words.split()}


_MEANINGS = {option: _by_spelling(table) for option, table in _SPELLINGS.items()}
_PROBLEMS = {option: _by_spelling(table) for option, table in _UNCLEAR.items()}
_INSTEAD: Mapping[str, str] = _by_spelling(_OPTIONS)
_MODULE = re.compile(r"^(torch|transformers|bitsandbytes)\.([a-z_]+\.)*")  # torch.optim.AdamW


def what_to_use(name: str, value: Any) -> str | None:
    """Return what to use instead of an option of another library; None if none has it."""
    name = name.replace("-", "_")
    template = _INSTEAD.get(name)
    if template is None:
        return None
    word = str(value).strip().lower()
    if name in _OFF_BY_DEFAULT.split() and (word in _OFF_WORDS or word in ("[]", "()", "{}", "0")):
        return "nothing, and leave it out: it is off by default"
    if word == "true" and template.partition("=")[0] in _FOR_TRUE:
        return template.format(r=_FOR_TRUE[template.partition("=")[0]])
    is_number = isinstance(value, str) and re.fullmatch(r"[\d.]+(e[+-]?\d+)?", value)
    return template.format(v=value, r=value if is_number else repr(value))


def key(text: str) -> str:
    """Normalize a word: lower case, without dashes, underscores and spaces."""
    return re.sub(r"[\s_\-]", "", _MODULE.sub("", text.strip()).lower())


def plain_value(value: Any) -> Any:
    """Convert a value of torch, numpy or datetime to Python's types; return others unchanged."""
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, timedelta):
        return f"{value.total_seconds() / 60!r} minutes"
    home = type(value).__module__.partition(".")[0]
    if home in ("torch", "numpy"):
        if hasattr(value, "tolist"):  # an array or a tensor; of no dimension it is a number
            return value.tolist()
        return str(value).removeprefix("torch.")
    return value


def is_off(option: str, value: Any) -> bool:
    """Return whether a value switches an option off."""
    if option not in OFF or value in ([], ()):
        return False
    if value is None or value is False:
        return True
    if isinstance(value, (int, float)):
        return (value == 0 and option not in _ZERO_IS_A_VALUE) or (
            option == "max_grad_norm" and value == float("inf")
        )
    if not isinstance(value, str):
        return False
    word = value.strip().lower()
    return word in _OFF_WORDS or (word == "0" and option not in _ZERO_IS_A_VALUE)


def read_word(option: str, value: Any, choices: tuple[str, ...]) -> Any:
    """Return the meaning of a word for an option; return other values unchanged.

    Args:
        option: full name.
        value: as typed.
        choices: the words that the option takes, if any.

    Raises:
        ValueError: it could mean two things.
    """
    value = plain_value(value)
    if is_off(option, value):
        return OFF[option]
    if isinstance(value, str) and value in choices:
        return value
    if value is None:
        return NOT_SET
    if not isinstance(value, (str, int)):
        return value
    if option == "device" and str(value).isdigit():
        return f"cuda:{value}"
    word = key(str(value))
    if word in _PROBLEMS.get(option, {}):
        raise ValueError(_PROBLEMS[option][word])
    if word in _MEANINGS.get(option, {}):
        return _MEANINGS[option][word]
    return next((choice for choice in choices if key(choice) == word), value)
