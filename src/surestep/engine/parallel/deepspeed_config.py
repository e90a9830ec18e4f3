"""DeepSpeed's configuration, made of a Plan: the one truth, in its words.

Source: https://www.deepspeed.ai/docs/config-json/
"""

import math
from collections.abc import Mapping
from typing import Any

from surestep.engine.plan import Known


def generated(k: Known) -> dict[str, Any]:
    """Return DeepSpeed's configuration for what is planned."""
    return nested({**_chosen(k), **{key: value for key, (value, _) in owned(k).items()}})


def owned(k: Known) -> dict[str, tuple[Any, str]]:
    """Return each key that our options decide, by its path, with the option that does."""
    micro, ranks = k["micro_batch_size"], k["parallel.ranks"]
    steps = math.ceil(k["batch_size"] / (ranks * micro))
    keys: dict[str, tuple[Any, str]] = {
        "train_micro_batch_size_per_gpu": (micro, "micro_batch_size"),
        "gradient_accumulation_steps": (steps, "batch_size"),
        "gradient_clipping": (k["max_grad_norm"] or 0.0, "max_grad_norm"),
        "zero_optimization.stage": (k["parallel.zero"], "parallel.zero"),
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


def _chosen(k: Known) -> dict[str, Any]:
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
