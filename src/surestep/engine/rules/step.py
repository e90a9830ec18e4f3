"""Clipping, the guard against what is not finite, and the loss scale."""

from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Constraint, Rule
from surestep.engine.rules.helpers import Refusals, Rows, default_value, user_value, user_value_or

_KEPT = "checkpoint.keep_last"


def _not_clipped(wish: str) -> str:
    return (
        f"{wish} would clip a gradient that L-BFGS must know whole: it learns the curvature from "
        "differences of gradients. Leave it out, or say another optim.name."
    )


ROWS: Rows = {
    "max_grad_norm": (
        Rule(
            lambda k: k.is_off("max_grad_norm"),
            lambda _: None,
            "off, set {origin}; the norm is still measured",
        ),
        user_value("max_grad_norm"),
        Rule(lambda k: k.is_on("clip_value"), lambda _: None, "clip_value clips instead"),
        Rule(
            lambda k: k["optim.name"] == "lbfgs",
            lambda _: None,
            "L-BFGS learns from the whole gradient: it is not clipped",
        ),
        default_value(
            1.0, "one bad batch cannot throw the weights far; the share clipped is shown"
        ),
    ),
    "clip_value": user_value_or("clip_value", None, "not set: only the norm may be clipped"),
    "on_nonfinite": user_value_or("on_nonfinite", "raise", "a run that is broken should say so"),
    "max_nonfinite_steps": (
        user_value("max_nonfinite_steps"),
        Rule(lambda k: k["on_nonfinite"] == "skip", lambda _: 100, "more is not bad luck"),
        default_value(0, "on_nonfinite is raise"),
    ),
    "on_spike": (
        user_value("on_spike"),
        Rule(
            lambda k: k.task_info.own_step,
            lambda _: "off",
            "the Task's own step decides what its loss is: it need not fall",
        ),
        default_value("warn", "a loss that jumps is seen late by eye; nothing is changed"),
    ),
    "max_rollbacks": (
        user_value("max_rollbacks"),
        Rule(
            lambda k: k["on_spike"] == "rollback",
            lambda _: 3,
            "8, 16 and 32 steps are left out; more is not bad data",
        ),
        default_value(0, "on_spike is {k[on_spike]}"),
    ),
    "guard": (
        Rule(
            lambda k: k["optim.name"] == "lbfgs",
            lambda _: "searching",
            "the host reads each evaluation of the batch; one that is not finite undoes the step",
        ),
        Rule(
            lambda k: strategy_class(k["parallel.strategy"]).reads_each_step,
            lambda _: "reading",
            "parallel.strategy={k[parallel.strategy]} cannot skip a step on the device: the host "
            "reads loss and norm before each step",
        ),
        Rule(
            lambda k: k["parallel.offload"] != "off" and k.on_gpu,
            lambda _: "reading",
            "parallel.offload keeps gradients and optimizer on the host, and the loss is on the "
            "device: one read a step",
        ),
        Rule(
            lambda k: k["precision"] == "fp16",
            lambda _: "scaled",
            "fp16 may overflow: the host reads the loss scale once a step",
        ),
        Rule(
            lambda k: k["on_nonfinite"] == "skip",
            lambda _: "reading",
            "skipping for good needs the host to know: one read a step",
        ),
        Rule(
            lambda k: k["optim.implementation"] != "fused",
            lambda _: "reading",
            "this optimizer cannot be told to skip on the device: one read a step",
        ),
        Rule(
            lambda k: k.device == "mps",
            lambda _: "reading",
            "whether the fused kernel can skip a step was not verified on mps: one read a step",
        ),
        Rule(
            lambda k: bool(k.chosen.get("optim.dampening") and k["optim.momentum"]),
            lambda _: "reading",
            "with dampening torch's first step cannot be skipped on the device: one read a step",
        ),
        default_value("sticky", "kept on the device and read at log points: no read a step"),
    ),
    "scaler.init_scale": user_value_or("scaler.init_scale", 65536.0, "torch's default"),
    "scaler.growth_factor": user_value_or("scaler.growth_factor", 2.0, "torch's default"),
    "scaler.growth_interval": user_value_or("scaler.growth_interval", 2000, "torch's default"),
    "scaler.backoff_factor": user_value_or("scaler.backoff_factor", 0.5, "torch's default"),
}

REFUSALS: Refusals = {
    "max_grad_norm": (
        Constraint(
            lambda k: k.is_on("max_grad_norm") and k.is_on("clip_value"),
            lambda k: (
                f"max_grad_norm={k.set_options['max_grad_norm']} and "
                f"clip_value={k.set_options['clip_value']} "
                "are two ways to clip. Say one of them."
            ),
        ),
        Constraint(
            lambda k: k["optim.name"] == "lbfgs" and k.is_on("max_grad_norm"),
            lambda k: _not_clipped(f"max_grad_norm={k.set_options['max_grad_norm']}"),
        ),
    ),
    "clip_value": (
        Constraint(
            lambda k: k["optim.name"] == "lbfgs" and k.is_on("clip_value"),
            lambda k: _not_clipped(f"clip_value={k.set_options['clip_value']}"),
        ),
    ),
    "on_spike": (
        Constraint(
            lambda k: k.set_options.get("on_spike") == "rollback" and k.set_options.get(_KEPT) == 1,
            lambda _: (
                "on_spike='rollback' may need the checkpoint before the newest, and "
                "checkpoint.keep_last=1 keeps none. Say checkpoint.keep_last=2."
            ),
        ),
        Constraint(
            lambda k: k.set_options.get("on_spike") == "rollback" and k.is_off("checkpoint.every"),
            lambda _: (
                "on_spike='rollback' needs a checkpoint to go back to, and checkpoint.every is "
                "off. Set checkpoint.every='1 epoch'."
            ),
        ),
    ),
}
