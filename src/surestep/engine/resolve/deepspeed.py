"""DeepSpeed: which stage of ZeRO, and the configuration that it is given."""

import math

from surestep.config.param_groups import parse_param_group
from surestep.engine.parallel.deepspeed.config import find_problems, make_ds_config
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.resolve.parallel import NEEDS_FULL_TENSORS

_DDP = "or use parallel.strategy='ddp'."


def _is_chosen(ctx: PlanContext) -> bool:
    return "zero_stage" in strategy_class(ctx["parallel.strategy"]).takes


@resolves("parallel.zero_stage")
def zero_stage(ctx: PlanContext) -> Decision:
    """Shard optimizer state and gradients."""
    if not _is_chosen(ctx):
        return None, f"parallel.strategy is {ctx['parallel.strategy']}"
    return ctx.set_or(
        2,
        "optimizer state and gradients are sharded; with parameters too (3) each layer is gathered "
        "in each forward and backward",
    )


@resolves("parallel.deepspeed")
def deepspeed(ctx: PlanContext) -> Decision:
    """Make DeepSpeed's configuration from the Plan and the user's keys."""
    if not _is_chosen(ctx):
        return {}, f"parallel.strategy is {ctx['parallel.strategy']}"
    _check_shards(ctx)
    _check_precision(ctx)
    _check_rest(ctx)
    if not ctx.rejections:
        for problem in find_problems(ctx):
            ctx.reject(problem)
    config = {} if ctx.rejections else make_ds_config(ctx)
    if not ctx.is_set("parallel.deepspeed"):
        return config, "made from this plan; a copy is in the run folder, as ds_config.json"
    return config, f"made from this plan and your keys; set {ctx.origin('parallel.deepspeed')}"


def _check_shards(ctx: PlanContext) -> None:
    stage, offload, name = ctx["parallel.zero_stage"], ctx["parallel.offload"], ctx["optim.name"]
    if offload == "all" and stage != 3:
        ctx.reject(
            f"parallel.offload='all' also offloads parameters, and parallel.zero_stage={stage} "
            "does not shard them. Set parallel.zero_stage=3, or parallel.offload='optimizer'."
        )
    elif offload != "off" and not stage:
        ctx.reject(
            f"parallel.offload={offload!r} needs parallel.zero_stage=1, 2 or 3. Set one of them, "
            "or leave it out."
        )
    if stage and (name in NEEDS_FULL_TENSORS or name == "adagrad"):
        ctx.reject(
            f"optim.name={name!r} updates full tensors, and parallel.zero_stage={stage} shards "
            "them. Set optim.name='adamw', or parallel.zero_stage=0."
        )
    for text in ctx.get("optim.groups", ()):
        if stage and isinstance(parse_param_group(text).freeze, str):
            ctx.reject(
                f"optim.groups: {str(text)!r} trains parameters later, and parallel.zero_stage="
                f"{stage} shards those that are trained from the start. Freeze it for good, or set "
                "parallel.zero_stage=0."
            )
    if ctx["average.kind"] != "none" and (stage == 3 or ctx["precision"] in ("bf16", "fp16")):
        ctx.reject(
            f"average.kind={ctx['average.kind']!r} needs full fp32 parameters on each rank: "
            "parallel.zero_stage up to 2 with precision='fp32'. Set those, or leave the average "
            "out."
        )
    if stage == 3 and ctx["checkpoint.weights"] == "trained":
        ctx.reject(
            "checkpoint.weights='trained' needs the full frozen parameters on each rank. Set "
            "checkpoint.weights='all', or parallel.zero_stage=2."
        )


def _check_precision(ctx: PlanContext) -> None:
    if ctx["precision"] in ("bf16", "fp16") and not ctx["parallel.zero_stage"]:
        ctx.reject(
            f"parallel.zero_stage=0 computes in fp32, and precision is {ctx['precision']}. Set "
            "parallel.zero_stage=1, or precision='fp32'."
        )
    if ctx["precision"] != "fp16":
        return
    if not ctx.on_gpu:
        ctx.reject(f"precision='fp16' needs a GPU with DeepSpeed. Set precision='bf16', {_DDP}")
    fits = {
        "scaler.init_scale": math.log2(ctx["scaler.init_scale"]).is_integer(),
        "scaler.growth_factor": ctx["scaler.growth_factor"] == 2,
        "scaler.backoff_factor": ctx["scaler.backoff_factor"] == 0.5,
    }
    for name, fit in fits.items():
        if not fit:
            ctx.reject(
                f"{name}={ctx[name]}: DeepSpeed's loss scale is a power of 2, doubles and halves. "
                f"Leave it out, {_DDP}"
            )


def _check_rest(ctx: PlanContext) -> None:
    if ctx["clip_value"] is not None:
        ctx.reject(
            f"clip_value={ctx['clip_value']}: DeepSpeed clips the norm only. Set max_grad_norm, "
            f"{_DDP}"
        )
    if ctx.task_info.sparse:
        ctx.reject(
            f"The gradient of {ctx.task_info.sparse[0]} is sparse, which is not supported with "
            f"DeepSpeed. Build the table with sparse=False, {_DDP}"
        )
    if ctx.task_info.scalars:
        ctx.reject(
            f"{ctx.task_info.scalars[0]} has no dimension, and DeepSpeed cannot send it to the "
            f"other ranks. Give it one, torch.ones(1), {_DDP}"
        )
    if ctx["compile"] != "off":
        ctx.reject(
            f"compile={ctx['compile']!r}: DeepSpeed's hooks are in the model that would be "
            f"compiled. Set compile='off', {_DDP}"
        )
