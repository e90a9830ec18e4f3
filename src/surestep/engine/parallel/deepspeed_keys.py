"""The keys of DeepSpeed's configuration that pass through, by their paths.

Source: https://www.deepspeed.ai/docs/config-json/, and the fields of DeepSpeed 0.19.8 itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from surestep.engine.plan import Known

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


class Limit(NamedTuple):
    """Which values of a key pass.

    Attributes:
        fits: says whether one does, with what is planned.
        why: the others do not.
    """

    fits: Callable[[Any, Known], bool]
    why: str


def _of_precision(value: Any, k: Known) -> bool:
    """Say whether gradients may be added up in a type: in fp32 in that alone."""
    return k["precision"] in ("bf16", "fp16") or value in (None, "fp32")


_SUMS = Limit(
    _of_precision,
    "precision is fp32, and sums of 16 bits would not be those of one process. Leave the key out, "
    "or say precision='bf16'",
)
_QUANTIZED = Limit(
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
    "zero_optimization.stage3_module_granularity_threshold": Limit(
        lambda value, k: not value,
        "DeepSpeed fetches a fine-grained module as one, and lets go of its parameters before its "
        "backward where the module's input needs no gradient. Leave the key out",
    ),
    "zero_optimization.round_robin_gradients": Limit(
        lambda value, k: not value or k["parallel.zero"] not in (1, 2),
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
