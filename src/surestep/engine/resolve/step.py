"""Clipping, the guard against steps that are not finite, and loss spikes."""

from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import Decision, PlanContext, resolves


@resolves("max_grad_norm", "clip_value")
def clipping(ctx: PlanContext) -> Decision:
    """Clip the norm, unless its elements are clipped or the optimizer needs all of the gradient."""
    is_lbfgs, value = ctx["optim.name"] == "lbfgs", ctx.get(ctx.option)
    if is_lbfgs and value is not None:
        ctx.reject(
            f"{ctx.option}={value} would clip the gradient, and L-BFGS learns the curvature from "
            "differences of full gradients. Leave it out, or use another optim.name."
        )
    if ctx.option == "clip_value":
        if value is not None and not ctx.task_info.floating:
            ctx.reject(
                f"clip_value={value} limits each element, and complex numbers have no order: the "
                "model has complex parameters. Use max_grad_norm=1.0, which limits their norm."
            )
        return ctx.declared()
    if ctx.is_off("max_grad_norm"):
        return None, f"off, set {ctx.origin('max_grad_norm')}; the norm is still measured"
    if ctx.get("clip_value") is not None:
        return ctx.set_or(None, "clip_value clips instead")
    if is_lbfgs:
        return None, "L-BFGS learns from the full gradient: it is not clipped"
    return ctx.set_or(
        1.0, "limits the effect of one bad batch; the share of clipped steps is shown"
    )


@resolves("on_spike")
def on_spike(ctx: PlanContext) -> Decision:
    """Decide what happens at a loss spike: a warning, if the loss is one that should fall."""
    if ctx.get("on_spike") == "rollback" and ctx.get("checkpoint.keep_last") == 1:
        ctx.reject(
            "on_spike='rollback' may need the checkpoint before the newest, and "
            "checkpoint.keep_last=1 keeps none. Set checkpoint.keep_last=2."
        )
    if ctx.get("on_spike") == "rollback" and ctx.is_off("checkpoint.every"):
        ctx.reject(
            "on_spike='rollback' needs a checkpoint to return to, and checkpoint.every is off. "
            "Set checkpoint.every='1 epoch'."
        )
    if ctx.task_info.own_step:
        return ctx.set_or("off", "the Task's own step decides what its loss is: it need not fall")
    return ctx.set_or("warn", "a loss that jumps is reported, and training continues unchanged")


@resolves("guard")
def guard(ctx: PlanContext) -> Decision:
    """Choose how a step that is not finite is skipped: on the device if everything allows it."""
    strategy = ctx["parallel.strategy"]
    if ctx["optim.name"] == "lbfgs":
        return "line_search", (
            "the host reads each evaluation of the batch; if one is not finite, the step is undone"
        )
    if strategy_class(strategy).reads_each_step:
        return "host", (
            f"parallel.strategy={strategy} cannot skip a step on the device: the host reads loss "
            "and norm before each step"
        )
    if ctx["parallel.offload"] != "off" and ctx.on_gpu:
        return "host", (
            "parallel.offload keeps gradients and optimizer on the host, and the loss is on the "
            "device: the host reads it once in each step"
        )
    if ctx["precision"] == "fp16":
        return "grad_scaler", "fp16 may overflow: the host reads the loss scale once a step"
    if ctx["on_nonfinite"] == "skip":
        return "host", "the host counts the skipped steps: it reads the device once in each step"
    if ctx["optim.implementation"] != "fused":
        return "host", "this optimizer cannot skip a step by itself: the host reads each step"
    if ctx.device == "mps":
        return "host", "not verified that the fused kernel can skip a step on mps"
    if ctx["optim.dampening"] and ctx["optim.momentum"]:
        return "host", "with dampening torch's first step cannot be skipped on the device"
    return (
        "device",
        "the device skips a step that is not finite; the host learns of it at the next log point",
    )
