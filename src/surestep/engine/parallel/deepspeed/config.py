"""DeepSpeed's configuration: made from the Plan, with the keys of the user that it may have.

Source: https://www.deepspeed.ai/docs/config-json/, and the fields of DeepSpeed 0.19.8.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from surestep.base.errors import suggest_names
from surestep.engine.plan.context import PlanContext

# Keys for speed and for output, which change no number.
USER_KEYS = {
    "": """
        prescale_gradients gradient_predivide_factor steps_per_print wall_clock_breakdown
        memory_breakdown dump_state log_level disable_allgather disable_python_gc
    """,
    "zero_optimization": """
        contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions
        allgather_bucket_size overlap_comm sub_group_size ignore_unused_parameters
        use_multi_rank_bucket_allreduce parameter_alignment memory_efficient_linear
        stage3_prefetch_bucket_size stage3_param_persistence_threshold
        stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
        stage3_gather_16bit_weights_on_model_save stage3_use_all_reduce_for_fetch_params
        stage3_allgather_sequential zero_hpz_partition_size log_trace_cache_warnings
        enable_sanity_checks offload_optimizer.pin_memory offload_optimizer.buffer_count
        offload_optimizer.fast_init offload_optimizer.ratio offload_param.pin_memory
        offload_param.buffer_count offload_param.buffer_size offload_param.max_in_cpu
    """,
    "fp16": "hysteresis min_loss_scale consecutive_hysteresis",
    "comms_logger": "enabled prof_all prof_ops verbose debug",
    "flops_profiler": """
        enabled recompute_fwd_factor profile_step module_depth top_modules detailed output_file
    """,
    "tensorboard": "enabled output_path job_name",
    "csv_monitor": "enabled output_path job_name",
    "wandb": "enabled group team project",
    "aio": "block_size queue_depth intra_op_parallelism single_submit overlap_events",
}
PASSED = tuple(
    f"{table}.{key}".lstrip(".") for table, keys in USER_KEYS.items() for key in keys.split()
)
# Keys and tables for which surestep has options.
OPTIONS = {
    "train_batch_size": "batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "micro_batch_size",
    "gradient_clipping": "max_grad_norm",
    "bf16": "precision",
    "fp16": "precision, and scaler.init_scale and scaler.growth_interval",
    "torch_autocast": "precision",
    "optimizer": "optim.name and the other options of optim",
    "scheduler": "schedule.name and the other options of schedule",
    "activation_checkpointing": "activation_checkpointing",
    "zero_optimization.stage": "parallel.zero_stage",
    "zero_optimization.cpu_offload": "parallel.offload",
    "zero_optimization.offload_optimizer": "parallel.offload",
    "zero_optimization.offload_param": "parallel.offload",
}


def make_ds_config(ctx: PlanContext) -> dict[str, Any]:
    """Return DeepSpeed's configuration for the Plan."""
    own = {key: value for key, value in user_keys(ctx).items() if key in PASSED}
    return _nested({**_defaults(ctx), **own, **_managed(ctx)})


def find_problems(ctx: PlanContext) -> Iterator[str]:
    """Yield a message for each of the user's keys that DeepSpeed may not have."""
    managed = _managed(ctx)
    for key, value in user_keys(ctx).items():
        if key in PASSED or (key in managed and managed[key] == value):
            continue
        option = next((OPTIONS[name] for name in OPTIONS if f"{key}.".startswith(f"{name}.")), None)
        if option is not None:
            yield (
                f"parallel.deepspeed has {key}={value!r}, which surestep decides. Remove the key, "
                f"and set {option} instead."
            )
        else:
            yield f"parallel.deepspeed does not take {key!r}. {suggest_names(key, PASSED)}"


def user_keys(ctx: PlanContext) -> dict[str, Any]:
    """Return the user's keys by their paths, without those that leave a choice to surestep."""
    table = json.loads(ctx.get("parallel.deepspeed", "{}"))
    return {key: value for key, value in _flat(table) if value not in ("auto", "none")}


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key by its path."""
    for name, value in table.items():
        path = f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{path}.")
        else:
            yield path, value


def _nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return keys by their paths ("zero_optimization.stage") as nested tables."""
    tables: dict[str, Any] = {}
    for path, value in keys.items():
        table = tables
        *above, last = path.split(".")
        for name in above:
            table = table.setdefault(name, {})
        table[last] = value
    return tables


def _managed(ctx: PlanContext) -> dict[str, Any]:
    """Return the keys that follow from the Plan, by their paths."""
    micro, ranks, precision = ctx["micro_batch_size"], ctx["parallel.ranks"], ctx["precision"]
    steps = math.ceil(ctx["batch_size"] / (ranks * micro))
    keys = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        "gradient_clipping": ctx["max_grad_norm"] or 0.0,
        "zero_optimization.stage": ctx["parallel.zero_stage"],
        "bf16.enabled": precision == "bf16",
        "fp16.enabled": precision == "fp16",
    }
    if micro * steps * ranks == ctx["batch_size"]:  # DeepSpeed rejects an uneven one
        keys["train_batch_size"] = ctx["batch_size"]
    for kind in _offloaded(ctx):
        keys[f"zero_optimization.offload_{kind}.device"] = "cpu"
    if precision == "fp16":
        keys["fp16.loss_scale"] = 0  # it changes
        keys["fp16.initial_scale_power"] = round(math.log2(ctx["scaler.init_scale"]))
        keys["fp16.loss_scale_window"] = ctx["scaler.growth_interval"]
    return keys


def _defaults(ctx: PlanContext) -> dict[str, Any]:
    """Return the keys that surestep chooses; the user's keys override them."""
    keys: dict[str, Any] = {
        "zero_allow_untested_optimizer": True,  # the optimizer is surestep's
        "zero_force_ds_cpu_optimizer": False,
    }
    for kind in _offloaded(ctx):
        keys[f"zero_optimization.offload_{kind}.pin_memory"] = ctx.on_gpu
    if ctx["precision"] in ("bf16", "fp16"):  # sums over micro-batches and ranks
        keys |= {"data_types.grad_accum_dtype": "fp32", "communication_data_type": "fp32"}
    if ctx["precision"] == "fp16":
        keys |= {"fp16.hysteresis": 1, "fp16.min_loss_scale": 1}  # as torch's scaler
    return keys


def _offloaded(ctx: PlanContext) -> tuple[str, ...]:
    return {"off": (), "optimizer": ("optimizer",), "all": ("optimizer", "param")}[
        ctx["parallel.offload"]
    ]
