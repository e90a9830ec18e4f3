"""DeepSpeed: which stage of ZeRO, and the configuration that it is given."""

import math

from surestep.config.param_groups import parse_param_group
from surestep.engine.parallel.deepspeed.config import (
    make_ds_config,
    problems,
    sums_in_16_bits,
    uses_deepspeed_adam,
)
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.parallel import NEEDS_FULL_TENSORS
from surestep.engine.rules.rule import RULES, rule

_DDP = "or use parallel.strategy='ddp'."


def _is_chosen(k: PlanContext) -> bool:
    return bool(k["parallel.strategy"] == "deepspeed")


@rule("parallel.zero_stage")
def zero_stage(k: PlanContext) -> Decision:
    """Shard optimizer state and gradients."""
    if not _is_chosen(k):
        return None, f"parallel.strategy is {k['parallel.strategy']}"
    return k.set_or(
        2,
        "optimizer state and gradients are sharded; with parameters too (3) each layer is gathered "
        "in each forward and backward",
    )


@rule("parallel.deepspeed")
def deepspeed(k: PlanContext) -> Decision:
    """Make DeepSpeed's configuration from the Plan and the user's keys."""
    if not _is_chosen(k):
        return {}, f"parallel.strategy is {k['parallel.strategy']}"
    for option in RULES:
        if option.startswith(("optim.", "schedule.")):
            k[option]  # the configuration repeats them
    _check_shards(k)
    _check_precision(k)
    _check_rest(k)
    if not k.rejections:
        for problem in problems(k):
            k.reject(problem)
    config = {} if k.rejections else make_ds_config(k)
    if not k.is_set("parallel.deepspeed"):
        return config, "made from this plan; a copy is in the run folder, as ds_config.json"
    start = "made from this plan and your keys"
    if sums_in_16_bits(k):
        start += ", which sum gradients in 16 bits: rounding depends on the number of ranks"
    return config, f"{start}; set {k.origin('parallel.deepspeed')}"


def _check_shards(k: PlanContext) -> None:
    stage, offload, name = k["parallel.zero_stage"], k["parallel.offload"], k["optim.name"]
    if offload == "all" and stage != 3:
        k.reject(
            f"parallel.offload='all' also offloads parameters, and parallel.zero_stage={stage} "
            "does not shard them. Set parallel.zero_stage=3, or parallel.offload='optimizer'."
        )
    elif offload != "off" and not stage:
        k.reject(
            f"parallel.offload={offload!r} needs parallel.zero_stage=1, 2 or 3. Set one of them, "
            "or leave it out."
        )
    if stage and (name in NEEDS_FULL_TENSORS or name == "adagrad"):
        k.reject(
            f"optim.name={name!r} updates full tensors, and parallel.zero_stage={stage} shards "
            "them. Set optim.name='adamw', or parallel.zero_stage=0."
        )
    for text in k.get("optim.groups", ()):
        if stage and isinstance(parse_param_group(text).freeze, str):
            k.reject(
                f"optim.groups: {str(text)!r} trains parameters later, and parallel.zero_stage="
                f"{stage} shards those that are trained from the start. Freeze it for good, or set "
                "parallel.zero_stage=0."
            )
    if k["average.kind"] != "none" and (stage == 3 or k["precision"] in ("bf16", "fp16")):
        k.reject(
            f"average.kind={k['average.kind']!r} needs full fp32 parameters on each rank: "
            "parallel.zero_stage up to 2 with precision='fp32'. Set those, or leave the average "
            "out."
        )
    if stage == 3 and k["checkpoint.weights"] == "trained":
        k.reject(
            "checkpoint.weights='trained' needs the full frozen parameters on each rank. Set "
            "checkpoint.weights='all', or parallel.zero_stage=2."
        )


def _check_precision(k: PlanContext) -> None:
    if k["precision"] in ("bf16", "fp16") and not k["parallel.zero_stage"]:
        k.reject(
            f"parallel.zero_stage=0 computes in fp32, and precision is {k['precision']}. Set "
            "parallel.zero_stage=1, or precision='fp32'."
        )
    if k["precision"] != "fp16":
        return
    if not k.on_gpu:
        k.reject(f"precision='fp16' needs a GPU with DeepSpeed. Set precision='bf16', {_DDP}")
    fits = {
        "scaler.init_scale": math.log2(k["scaler.init_scale"]).is_integer(),
        "scaler.growth_factor": k["scaler.growth_factor"] == 2,
        "scaler.backoff_factor": k["scaler.backoff_factor"] == 0.5,
    }
    for name, fit in fits.items():
        if not fit:
            k.reject(
                f"{name}={k[name]}: DeepSpeed's loss scale is a power of 2, doubles and halves. "
                f"Leave it out, {_DDP}"
            )


def _check_rest(k: PlanContext) -> None:
    if "deepspeed" not in k.system.extras:
        k.reject(
            "parallel.strategy='deepspeed' needs the package deepspeed, which is not installed. "
            "Install it: pip install setuptools wheel, then pip install --no-build-isolation "
            "'surestep[deepspeed]'."
        )
    if k["clip_value"] is not None:
        k.reject(
            f"clip_value={k['clip_value']}: DeepSpeed clips the norm only. Set max_grad_norm, "
            f"{_DDP}"
        )
    if uses_deepspeed_adam(k) and (why := _own_adam_problem(k)) is not None:
        k.reject(
            f"parallel.deepspeed has torch_adam=false, which is DeepSpeed's own Adam, and {why}."
        )
    if k.task_info.sparse:
        k.reject(
            f"The gradient of {k.task_info.sparse[0]} is sparse, which is not supported with "
            f"DeepSpeed. Build the table with sparse=False, {_DDP}"
        )
    if k.task_info.scalars:
        k.reject(
            f"{k.task_info.scalars[0]} has no dimension, and DeepSpeed cannot send it to the other "
            f"ranks. Give it one, torch.ones(1), {_DDP}"
        )
    if k["compile"] != "off":
        k.reject(
            f"compile={k['compile']!r}: DeepSpeed's hooks are in the model that would be compiled. "
            f"Set compile='off', {_DDP}"
        )


def _own_adam_problem(k: PlanContext) -> str | None:
    wanted = k.get("optim.implementation", "auto")
    if wanted != "auto":
        return f"optim.implementation={wanted!r} is torch's. Leave one of them out"
    if k["optim.name"] not in ("adam", "adamw"):
        return f"optim.name is {k['optim.name']!r}. Set 'adam' or 'adamw', or leave the key out"
    if k["optim.amsgrad"]:
        return "it has no amsgrad. Leave optim.amsgrad out, or the key"
    if not k["parallel.zero_stage"]:
        return "parallel.zero_stage=0 does not support it. Set 1, 2 or 3, or leave the key out"
    return None
