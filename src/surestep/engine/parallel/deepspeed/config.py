"""The keys of DeepSpeed's configuration that pass through, by their paths.

Source: https://www.deepspeed.ai/docs/config-json/, and the fields of DeepSpeed 0.19.8 itself.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from surestep.base.errors import suggest_names
from surestep.engine.plan.context import PlanContext

_ZERO = (
    *("contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions"),
    *("allgather_bucket_size", "overlap_comm", "round_robin_gradients", "sub_group_size"),
    *("use_multi_rank_bucket_allreduce", "parameter_alignment", "ignore_unused_parameters"),
    *("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"),
    *("stage3_model_persistence_threshold", "stage3_max_live_parameters"),
    *("stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save"),
    *("stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params"),
    *("stage3_allgather_sequential", "zero_hpz_partition_size", "zero_quantized_weights"),
    *("zero_quantized_nontrainable_weights", "zero_quantized_gradients"),
    *("memory_efficient_linear", "log_trace_cache_warnings", "enable_sanity_checks"),
    *("offload_optimizer.pin_memory", "offload_optimizer.buffer_count"),
    *("offload_optimizer.fast_init", "offload_optimizer.ratio", "offload_param.pin_memory"),
    *("offload_param.buffer_count", "offload_param.buffer_size", "offload_param.max_in_cpu"),
)
# What it watches and tells, and how it reads files: no number hangs on it.
_TOLD = {
    "comms_logger": ("enabled", "prof_all", "prof_ops", "verbose", "debug"),
    "flops_profiler": (
        *("enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules"),
        *("detailed", "output_file"),
    ),
    "tensorboard": ("enabled", "output_path", "job_name"),
    "csv_monitor": ("enabled", "output_path", "job_name"),
    "wandb": ("enabled", "group", "team", "project"),
    "comet": (
        *("enabled", "samples_log_interval", "project", "workspace", "api_key"),
        *("experiment_name", "experiment_key", "online", "mode"),
    ),
    "aio": (
        *("block_size", "queue_depth", "intra_op_parallelism", "single_submit"),
        *("overlap_events", "use_gds"),
    ),
    "timers.throughput": ("enabled", "synchronized"),
}
PASSED = (
    *(f"zero_optimization.{key}" for key in _ZERO),
    *(f"{table}.{key}" for table, keys in _TOLD.items() for key in keys),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "communication_data_type"),
    *("data_types.grad_accum_dtype", "fp16.hysteresis", "fp16.min_loss_scale"),
    *("fp16.consecutive_hysteresis", "prescale_gradients", "gradient_predivide_factor"),
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level"),
    *("disable_allgather", "disable_python_gc"),
)
# What "auto" means where no option of ours decides: DeepSpeed's own default.
AUTO = {
    "zero_optimization.reduce_bucket_size": 500_000_000,
    "zero_optimization.allgather_bucket_size": 500_000_000,
    "zero_optimization.stage3_prefetch_bucket_size": 50_000_000,
    "zero_optimization.stage3_param_persistence_threshold": 100_000,
    "zero_optimization.sub_group_size": 1_000_000_000,
}


class KeyConstraint(NamedTuple):
    """Which values of a key pass.

    Attributes:
        fits: says whether one does, with what is planned.
        why: the others do not.
    """

    fits: Callable[[Any, PlanContext], bool]
    why: str


def _of_precision(value: Any, k: PlanContext) -> bool:
    """Say whether gradients may be added up in a type: in fp32 in that alone."""
    return k["precision"] in ("bf16", "fp16") or value in (None, "fp32")


_SUMS = KeyConstraint(
    _of_precision,
    "precision is fp32, and sums of 16 bits would not be those of one process. Leave the key out, "
    "or say precision='bf16'",
)
_QUANTIZED = KeyConstraint(
    lambda value, k: not value,
    "numbers of 4 or 8 bits would travel in the place of the values, and the update would not be "
    "that of one process. Leave the key out",
)
# Keys that pass with some of their values.
LIMITS = {
    "communication_data_type": _SUMS,
    "data_types.grad_accum_dtype": _SUMS,
    "zero_optimization.zero_quantized_weights": _QUANTIZED,
    "zero_optimization.zero_quantized_nontrainable_weights": _QUANTIZED,
    "zero_optimization.zero_quantized_gradients": _QUANTIZED,
    "zero_optimization.stage3_module_granularity_threshold": KeyConstraint(
        lambda value, k: not value,
        "DeepSpeed fetches a fine-grained module as one, and lets go of its parameters before its "
        "backward where the module's input needs no gradient. Leave the key out",
    ),
    "zero_optimization.round_robin_gradients": KeyConstraint(
        lambda value, k: not value or k["parallel.zero_stage"] not in (1, 2),
        "in stages 1 and 2 DeepSpeed then loses which weights are whose, and a checkpoint would "
        "hold them under wrong names. Leave the key out",
    ),
}
# What is ours to do, or cannot be done beside it, with what to say instead.
REFUSED = {
    "optimizer.legacy_fusion": "the optimizer is torch's",
    "gradient_allreduce_op": "gradients are averaged, and the step divides by the items",
    "managed_gradient_accumulation": "the step says which backward is its last",
    "torch_autocast": "say precision='bf16'",
    "activation_checkpointing": "say activation_checkpointing='on' of our own",
    "checkpoint": "checkpoints are ours, and hold no pickles",
    "data_efficiency": "the order of samples is ours",
    "dataloader_drop_last": "say data.drop_last",
    "zero_optimization.zenflow": "its steps are not those of one process",
    "zero_optimization.compute_grad_norm": "the norm is what says whether a step is finite",
    "zero_optimization.cpu_offload": "say parallel.offload='optimizer'",
    "zero_optimization.offload_optimizer.nvme_path": "say parallel.offload='optimizer'",
    "zero_optimization.offload_param.nvme_path": "say parallel.offload='all'",
}


def make_ds_config(k: PlanContext) -> dict[str, Any]:
    """Return DeepSpeed's configuration for what is planned."""
    ours = {key: value for key, (value, _) in managed_keys(k).items()}
    own = {key: AUTO[key] if value == "auto" else value for key, value in user_keys(k).items()}
    passed = {key: value for key, value in own.items() if key in PASSED}
    return nested({**_chosen(k), **passed, **ours})


def user_keys(k: PlanContext) -> dict[str, Any]:
    """Return the user's own keys by their paths; an "auto" that we decide is none."""
    return keys_of(k.set_options.get("parallel.deepspeed", "{}"))


def keys_of(text: str) -> dict[str, Any]:
    """Return the keys of a table in JSON by their paths, without an "auto" that we decide."""
    keys = dict(_flat(json.loads(text)))
    return {key: each for key, each in keys.items() if each != "auto" or key in AUTO}


def uses_deepspeed_adam(k: PlanContext) -> bool:
    """Say whether DeepSpeed's own Adam is asked for; where nothing is said it is torch's."""
    return user_keys(k).get("optimizer.params.torch_adam") is False


def sums_in_16_bits(k: PlanContext) -> bool:
    """Say whether the user's keys let gradients be added up in 16 bits, where we choose fp32."""
    keys = ("communication_data_type", "data_types.grad_accum_dtype")
    return any(user_keys(k).get(key, "fp32") != "fp32" for key in keys)


def problems(k: PlanContext) -> list[str]:
    """Say of each of the user's own keys that cannot be taken why, and what to type."""
    ours = _agreed(k) | managed_keys(k)
    found = []
    for key, value in user_keys(k).items():
        if key in ours:
            wanted, option = ours[key]
            if not _same(value, wanted):
                found.append(
                    f"parallel.deepspeed says {key}={value!r}, and by {option} it is {wanted!r}. "
                    f"Say {option} as you want it, and leave the key out."
                )
        elif why := _why_not(key, value, k):
            found.append(f"parallel.deepspeed says {key}={value!r}, which is not taken: {why}.")
        elif key not in PASSED:
            known = (*PASSED, *ours)
            found.append(f"parallel.deepspeed has no key {key!r}. {suggest_names(key, known)}")
    return found


def _why_not(key: str, value: Any, k: PlanContext) -> str | None:
    """Say why a key that DeepSpeed knows is not taken, or not with this value."""
    if key in LIMITS:
        return None if LIMITS[key].fits(value, k) else LIMITS[key].why
    return next((REFUSED[name] for name in REFUSED if _is_in(key, name)), None)


def _agreed(k: PlanContext) -> dict[str, tuple[Any, str]]:
    """Return what a user's keys must agree with, and DeepSpeed is not told: it is ours to do."""
    name, params = str(k["optim.name"]), "optimizer.params"
    keys: dict[str, tuple[Any, str]] = {
        f"{params}.{option.removeprefix('optim.')}": (value, option)
        for option, value in k.chosen.items()
        if option.startswith("optim.") and value is not None
    }
    for kind in ("optimizer", "param"):
        keys[f"zero_optimization.offload_{kind}.device"] = ("none", "parallel.offload")
    return keys | {
        "train_batch_size": (k["batch_size"], "batch_size"),
        "optimizer.type": (name, "optim.name"),
        f"{params}.torch_adam": (not uses_deepspeed_adam(k), "parallel.deepspeed"),
        f"{params}.bias_correction": (True, "optim.name"),
        f"{params}.adam_w_mode": (name == "adamw", "optim.name"),
        "scheduler.type": (_SCHEDULERS.get(k["schedule.name"], "left out"), "schedule.name"),
        "scheduler.params.warmup_min_lr": (0, "schedule.warmup_start"),
        "scheduler.params.warmup_max_lr": (k["optim.lr"], "optim.lr"),
        "scheduler.params.warmup_num_steps": (
            round(k.length_in_steps(k["schedule.warmup"] or "0%")),
            "schedule.warmup",
        ),
        "scheduler.params.warmup_type": ("linear", "schedule.warmup"),
        "scheduler.params.total_num_steps": (k["total_steps"], "max_steps"),
    }


_SCHEDULERS = {"constant": "WarmupLR", "linear": "WarmupDecayLR", "cosine": "WarmupCosineLR"}


def _same(value: Any, wanted: Any) -> bool:
    """Say whether two values are the same; DeepSpeed's names have capitals, JSON no tuples."""
    if isinstance(value, str) and isinstance(wanted, str):
        return value.lower() == wanted.lower()
    if isinstance(value, list) and isinstance(wanted, tuple):
        return value == list(wanted)
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _is_in(key: str, table: str) -> bool:
    return key == table or key.startswith(f"{table}.")


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key by its path."""
    for name, value in table.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def managed_keys(k: PlanContext) -> dict[str, tuple[Any, str]]:
    """Return each key that our options decide, by its path, with the option that does."""
    micro, ranks = k["micro_batch_size"], k["parallel.ranks"]
    steps = math.ceil(k["batch_size"] / (ranks * micro))
    keys: dict[str, tuple[Any, str]] = {
        "train_micro_batch_size_per_gpu": (micro, "micro_batch_size"),
        "gradient_accumulation_steps": (steps, "batch_size or micro_batch_size"),
        "gradient_clipping": (k["max_grad_norm"] or 0.0, "max_grad_norm"),
        "zero_optimization.stage": (k["parallel.zero_stage"], "parallel.zero_stage"),
        "bf16.enabled": (k["precision"] == "bf16", "precision"),
        "fp16.enabled": (k["precision"] == "fp16", "precision"),
    }
    if micro * steps * ranks == k["batch_size"]:  # else DeepSpeed would not take it: it is uneven
        keys["train_batch_size"] = (k["batch_size"], "batch_size")
    if k["parallel.offload"] != "off":
        keys["zero_optimization.offload_optimizer.device"] = ("cpu", "parallel.offload")
    if k["parallel.offload"] == "all":
        keys["zero_optimization.offload_param.device"] = ("cpu", "parallel.offload")
    if k["precision"] == "fp16":
        keys |= {
            "fp16.loss_scale": (0, "precision"),  # it moves
            "fp16.initial_scale_power": (
                round(math.log2(k["scaler.init_scale"])),
                "scaler.init_scale",
            ),
            "fp16.loss_scale_window": (k["scaler.growth_interval"], "scaler.growth_interval"),
        }
    return keys


def _chosen(k: PlanContext) -> dict[str, Any]:
    """Return the keys that we choose, and that may be said otherwise."""
    keys: dict[str, Any] = {
        "zero_allow_untested_optimizer": True,  # the optimizer is ours
        "zero_force_ds_cpu_optimizer": False,
    }
    for kind in ("optimizer", "param"):
        if k["parallel.offload"] == "all" or (k["parallel.offload"], kind) == _ONLY_OPTIMIZER:
            keys[f"zero_optimization.offload_{kind}.pin_memory"] = k.on_gpu
    if k["precision"] in ("bf16", "fp16"):  # sums over micro-batches and ranks
        keys |= {"data_types.grad_accum_dtype": "fp32", "communication_data_type": "fp32"}
    if k["precision"] == "fp16":
        keys |= {"fp16.hysteresis": 1, "fp16.min_loss_scale": 1}  # as torch's scaler
    return keys


_ONLY_OPTIMIZER = ("optimizer", "optimizer")


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys by their paths ("zero_optimization.stage") as tables within tables."""
    tables: dict[str, Any] = {}
    for path, value in keys.items():
        table = tables
        *above, last = path.split(".")
        for name in above:
            table = table.setdefault(name, {})
        table[last] = value
    return tables
