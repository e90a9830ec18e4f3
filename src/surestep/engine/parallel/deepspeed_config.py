"""DeepSpeed's configuration, made of a Plan: the one truth, in its words.

Source: https://www.deepspeed.ai/docs/config-json/
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from surestep.base.errors import near
from surestep.engine.parallel.deepspeed_keys import AUTO, LIMITS, PASSED, REFUSED
from surestep.engine.plan import Known


def generated(k: Known) -> dict[str, Any]:
    """Return DeepSpeed's configuration for what is planned."""
    ours = {key: value for key, (value, _) in owned(k).items()}
    own = {key: AUTO[key] if value == "auto" else value for key, value in said(k).items()}
    passed = {key: value for key, value in own.items() if key in PASSED}
    return nested({**_chosen(k), **passed, **ours})


def said(k: Known) -> dict[str, Any]:
    """Return the user's own keys by their paths; an "auto" that we decide is none."""
    return keys_of(k.said.get("parallel.deepspeed", "{}"))


def keys_of(text: str) -> dict[str, Any]:
    """Return the keys of a table in JSON by their paths, without an "auto" that we decide."""
    keys = dict(_flat(json.loads(text)))
    return {key: each for key, each in keys.items() if each != "auto" or key in AUTO}


def own_adam(k: Known) -> bool:
    """Say whether DeepSpeed's own Adam is asked for; where nothing is said it is torch's."""
    return said(k).get("optimizer.params.torch_adam") is False


def sums_in_16_bits(k: Known) -> bool:
    """Say whether the user's keys let gradients be added up in 16 bits, where we choose fp32."""
    keys = ("communication_data_type", "data_types.grad_accum_dtype")
    return any(said(k).get(key, "fp32") != "fp32" for key in keys)


def problems(k: Known) -> list[str]:
    """Say of each of the user's own keys that cannot be taken why, and what to type."""
    ours = _agreed(k) | owned(k)
    found = []
    for key, value in said(k).items():
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
            found.append(f"parallel.deepspeed has no key {key!r}. {near(key, known)}")
    return found


def _why_not(key: str, value: Any, k: Known) -> str | None:
    """Say why a key that DeepSpeed knows is not taken, or not with this value."""
    if key in LIMITS:
        return None if LIMITS[key].fits(value, k) else LIMITS[key].why
    return next((REFUSED[name] for name in REFUSED if _is_in(key, name)), None)


def _agreed(k: Known) -> dict[str, tuple[Any, str]]:
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
        f"{params}.torch_adam": (not own_adam(k), "parallel.deepspeed"),
        f"{params}.bias_correction": (True, "optim.name"),
        f"{params}.adam_w_mode": (name == "adamw", "optim.name"),
        "scheduler.type": (_SCHEDULERS.get(k["schedule.name"], "left out"), "schedule.name"),
        "scheduler.params.warmup_min_lr": (0, "schedule.warmup_start"),
        "scheduler.params.warmup_max_lr": (k["optim.lr"], "optim.lr"),
        "scheduler.params.warmup_num_steps": (
            round(k.length(k.chosen.get("schedule.warmup", "0%"))),
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


def owned(k: Known) -> dict[str, tuple[Any, str]]:
    """Return each key that our options decide, by its path, with the option that does."""
    micro, ranks = k["micro_batch_size"], k["parallel.ranks"]
    steps = math.ceil(k["batch_size"] / (ranks * micro))
    keys: dict[str, tuple[Any, str]] = {
        "train_micro_batch_size_per_gpu": (micro, "micro_batch_size"),
        "gradient_accumulation_steps": (steps, "batch_size or micro_batch_size"),
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
