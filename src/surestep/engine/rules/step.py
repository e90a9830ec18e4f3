"""Clipping, the guard against steps that are not finite, and loss spikes."""

from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.rule import rule


@rule("max_grad_norm", "clip_value")
def clipping(k: PlanContext) -> Decision:
    """Clip the norm, unless its elements are clipped or the optimizer needs all of the gradient."""
    is_lbfgs, value = k["optim.name"] == "lbfgs", k.get(k.option)
    if is_lbfgs and value is not None:
        k.reject(
            f"{k.option}={value} would clip the gradient, and L-BFGS learns the curvature from "
            "differences of full gradients. Leave it out, or use another optim.name."
        )
    if k.option == "clip_value":
        return k.declared()
    if k.is_off("max_grad_norm"):
        return None, f"off, set {k.origin('max_grad_norm')}; the norm is still measured"
    if k.get("clip_value") is not None:
        return k.set_or(None, "clip_value clips instead")
    if is_lbfgs:
        return None, "L-BFGS learns from the full gradient: it is not clipped"
    return k.set_or(1.0, "limits the effect of one bad batch; the share of clipped steps is shown")


@rule("max_nonfinite_steps")
def max_nonfinite_steps(k: PlanContext) -> Decision:
    """Limit the steps that are skipped."""
    if k["on_nonfinite"] == "skip":
        return k.set_or(100, "more is not bad luck")
    return k.set_or(0, "on_nonfinite is raise")


@rule("on_spike")
def on_spike(k: PlanContext) -> Decision:
    """Report a spike, if the loss is one that should fall."""
    if k.get("on_spike") == "rollback" and k.get("checkpoint.keep_last") == 1:
        k.reject(
            "on_spike='rollback' may need the checkpoint before the newest, and "
            "checkpoint.keep_last=1 keeps none. Set checkpoint.keep_last=2."
        )
    if k.get("on_spike") == "rollback" and k.is_off("checkpoint.every"):
        k.reject(
            "on_spike='rollback' needs a checkpoint to return to, and checkpoint.every is off. "
            "Set checkpoint.every='1 epoch'."
        )
    if k.task_info.own_step:
        return k.set_or("off", "the Task's own step decides what its loss is: it need not fall")
    return k.set_or("warn", "a loss that jumps is easy to miss; nothing is changed")


@rule("max_rollbacks")
def max_rollbacks(k: PlanContext) -> Decision:
    """Limit the rollbacks."""
    if k["on_spike"] == "rollback":
        return k.set_or(3, "they skip 8, 16 and 32 steps; more is not bad data")
    return k.set_or(0, f"on_spike is {k['on_spike']}")


@rule("guard")
def guard(k: PlanContext) -> Decision:
    """Choose how a step that is not finite is skipped: on the device if everything allows it."""
    strategy = k["parallel.strategy"]
    if k["optim.name"] == "lbfgs":
        return "searching", (
            "the host reads each evaluation of the batch; one that is not finite undoes the step"
        )
    if strategy_class(strategy).reads_each_step:
        return "reading", (
            f"parallel.strategy={strategy} cannot skip a step on the device: the host reads loss "
            "and norm before each step"
        )
    if k["parallel.offload"] != "off" and k.on_gpu:
        return "reading", (
            "parallel.offload keeps gradients and optimizer on the host, and the loss is on the "
            "device: one read a step"
        )
    if k["precision"] == "fp16":
        return "scaled", "fp16 may overflow: the host reads the loss scale once a step"
    if k["on_nonfinite"] == "skip":
        return "reading", "the host has to count skipped steps: one read a step"
    if k["optim.implementation"] != "fused":
        return "reading", "this optimizer cannot skip a step on the device: one read a step"
    if k.device == "mps":
        return "reading", "not verified that the fused kernel can skip a step on mps"
    if k["optim.dampening"] and k["optim.momentum"]:
        return "reading", "with dampening torch's first step cannot be skipped on the device"
    return "sticky", "kept on the device and read at log points: no read a step"
