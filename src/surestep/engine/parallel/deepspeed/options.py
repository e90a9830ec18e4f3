"""Options that a table of DeepSpeed sets and the Config does not: they are taken over."""

from collections.abc import Iterator, Mapping
from typing import Any

from surestep.config.optim import BUILT_IN, Optim
from surestep.config.spellings import key

_SCHEDULES = {"warmuplr": "constant", "warmupdecaylr": "linear", "warmupcosinelr": "cosine"}
_OFFLOADS = {
    "zero_optimization.offload_param": "all",
    "zero_optimization.offload_optimizer": "optimizer",
}


def taken_over(keys: Mapping[str, Any], said: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return options that a user's keys decide, where the Config is silent.

    What does not mean the same in both is left: the Plan then says how the two differ.

    Args:
        keys: of DeepSpeed, by their paths; without those that are "auto".
        said: options that are set.
        ranks: processes that share a step.
    """
    found = dict([*_sizes(keys, said, ranks), *_precision(keys), *_optimizer(keys)])
    found |= dict(_schedule(keys))
    if "gradient_clipping" in keys:
        found["max_grad_norm"] = keys["gradient_clipping"] or None
    if "zero_optimization.stage" in keys:
        found["parallel.zero_stage"] = keys["zero_optimization.stage"]
    for table, offload in _OFFLOADS.items():
        if keys.get(f"{table}.device") == "cpu":
            found.setdefault("parallel.offload", offload)
    if {"epochs", "max_steps"} & said.keys():
        found.pop("max_steps", None)
    return {name: value for name, value in found.items() if name not in said}


def _sizes(
    keys: Mapping[str, Any], said: Mapping[str, Any], ranks: int
) -> Iterator[tuple[str, Any]]:
    """Work the batch sizes out: any two of DeepSpeed's three are enough."""
    steps = keys.get("gradient_accumulation_steps")
    batch = said.get("batch_size", keys.get("train_batch_size"))
    micro = said.get("micro_batch_size", keys.get("train_micro_batch_size_per_gpu"))
    if not all(isinstance(each, (int, type(None))) for each in (steps, batch, micro)):
        return
    if batch is None and micro is not None:
        batch = micro * (steps or 1) * ranks
    if micro is None and batch is not None and steps:
        micro = max(1, batch // (steps * ranks))
    if batch is not None:
        yield "batch_size", batch
    if micro is not None:
        yield "micro_batch_size", micro


def _precision(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in ("bf16", "fp16"):
        if keys.get(f"{name}.enabled") is True:
            yield "precision", name
    if keys.get("fp16.enabled") is True:
        if isinstance(power := keys.get("fp16.initial_scale_power"), int):
            yield "scaler.init_scale", float(2**power)
        if "fp16.loss_scale_window" in keys:
            yield "scaler.growth_interval", keys["fp16.loss_scale_window"]


def _optimizer(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    name = key(str(keys.get("optimizer.type", "")))
    # DeepSpeed's "Adam" decays as AdamW does unless it is told not to: the two are told apart.
    is_clear = name != "adam" or keys.get("optimizer.params.adam_w_mode") is False
    if name in BUILT_IN and is_clear:
        yield "optim.name", name
    for path, value in keys.items():
        table, _, option = path.rpartition(".")
        if table == "optimizer.params" and option in Optim.model_fields:
            yield f"optim.{option}", tuple(value) if isinstance(value, list) else value


def _schedule(keys: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schedule if its warm-up is a line, as ours is; DeepSpeed's own is a logarithm."""
    params = "scheduler.params"
    name = _SCHEDULES.get(key(str(keys.get("scheduler.type", ""))))
    steps = keys.get(f"{params}.warmup_num_steps", 0)
    if name is None or (steps and keys.get(f"{params}.warmup_type") != "linear"):
        return
    yield "schedule.name", name
    if steps:
        yield "schedule.warmup", f"{steps} steps"
    if f"{params}.total_num_steps" in keys:
        yield "max_steps", keys[f"{params}.total_num_steps"]
    if f"{params}.warmup_max_lr" in keys and "optimizer.params.lr" not in keys:
        yield "optim.lr", keys[f"{params}.warmup_max_lr"]
