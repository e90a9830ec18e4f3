"""The optimizer and its options."""

from typing import Any

from surestep.config.optim import OF_ALL, Optim
from surestep.config.param_groups import parse_param_group
from surestep.engine.optim.registry import BUILT_IN, default_of, optimizer_info, options_of
from surestep.engine.parallel.deepspeed.config import uses_deepspeed_adam
from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.rules.rule import rule

# Options of the parameters, which an optimizer of the Task's own has too.
_OF_PARAMETERS = ("optim.groups", "optim.layerwise_lr_decay")
_OF_ONE_OPTIMIZER = [option for option in Optim.model_fields if option not in OF_ALL]


def own_options(k: PlanContext) -> dict[str, Any]:
    """Return the values of the options that only the chosen optimizer has."""
    return {option: k[f"optim.{option}"] for option in options_of(k["optim.name"])}


@rule("optim.name")
def name(k: PlanContext) -> Decision:
    """Use AdamW, or SparseAdam for sparse gradients."""
    task = k.task_info
    if task.own_optimizer:
        foreign = (each for each in k.set_options if each.startswith("optim."))
        for option in foreign:
            if option not in _OF_PARAMETERS:
                k.reject(
                    f"{option} is set, but the Task brings its own optimizer. Set it there, as in "
                    "Task(optimizer=functools.partial(torch.optim.RAdam, lr=0.01)), or leave "
                    "Task(optimizer=...) out."
                )
        return "own", "the Task brings its optimizer"
    wanted = k.get("optim.name", "sparse_adam" if task.sparse else "adamw")
    _check_name(k, wanted)
    if task.sparse:
        reason = f"the gradient of {task.sparse[0]} is sparse: only rows that were read are updated"
        return k.set_or("sparse_adam", reason)
    return k.set_or("adamw", "trains most models without tuning; decoupled weight decay")


def _check_name(k: PlanContext, wanted: str) -> None:
    task, info = k.task_info, optimizer_info(wanted)
    if wanted == "adamw8bit" and "bitsandbytes" not in k.system.extras:
        k.reject(
            "optim.name='adamw8bit' needs the package bitsandbytes, which is not installed. "
            "Install it: pip install 'surestep[bnb]'."
        )
    if not task.floating and not info.takes_complex:
        k.reject(
            f"optim.name={wanted!r} takes no complex parameters, and the model has some. Use "
            "optim.name='adamw'."
        )
    if task.sparse and not info.takes_sparse:
        takers = [f"optim.name={each!r}" for each, it in BUILT_IN.items() if it.takes_sparse]
        k.reject(
            f"optim.name={wanted!r} takes no sparse gradients, and that of {task.sparse[0]} is "
            f"sparse. Use {', '.join(takers)}; or build the table with sparse=False."
        )
    if wanted == "sparse_adam" and not task.sparse:
        k.reject(
            "optim.name='sparse_adam' is for sparse gradients, and the model has none. Build a "
            "table with nn.Embedding(..., sparse=True), or use optim.name='adamw'."
        )
    if wanted == "muon" and not task.hidden:
        k.reject(
            "optim.name='muon' updates the matrices between the first and the last layer, and "
            "this model has none. Use optim.name='adamw'."
        )
    if wanted == "lbfgs" and k["precision"] == "fp16":
        k.reject(
            "optim.name='lbfgs' compares losses and gradients of several evaluations, which "
            "precision='fp16' scales. Use precision='bf16' or 'fp32'."
        )


def _decays(k: PlanContext) -> bool:
    """Return whether anything decays; SparseAdam does not, the AdamW beside it does."""
    chosen = k["optim.name"]
    return optimizer_info(chosen).decays and (chosen != "sparse_adam" or k.task_info.dense)


@rule("optim.lr", "optim.weight_decay")
def lr(k: PlanContext) -> Decision:
    """Use torch's default for the optimizer."""
    chosen = k["optim.name"]
    if k.task_info.own_optimizer:
        return None, "the Task's optimizer's own"
    if k.option == "optim.weight_decay":
        if k.is_set("optim.weight_decay") and not _decays(k):
            k.reject(
                f"optim.weight_decay={k.get('optim.weight_decay')!r}, but {chosen} has no weight "
                "decay. Leave it out, or use optim.name='adamw'."
            )
        if not optimizer_info(chosen).decays:
            return None, f"{chosen} has none"
    default = float(default_of(chosen, k.option.removeprefix("optim.")))
    return k.set_or(default, _default_reason(chosen))


@rule(*(f"optim.{option}" for option in _OF_ONE_OPTIMIZER))
def own_option(k: PlanContext) -> Decision | None:
    """Use the default of the optimizer's class."""
    option, chosen = k.option.removeprefix("optim."), k["optim.name"]
    if option not in options_of(chosen):
        return None
    if k.is_set(k.option):
        _check_own_option(k)
    if option == "adamw_lr":
        return _adamw_lr(k)
    return k.set_or(options_of(chosen)[option], _default_reason(chosen))


def _default_reason(chosen: str) -> str:
    if optimizer_info(chosen).plugin is not None:
        return f"the default of {chosen}"
    return f"{optimizer_info(chosen).path.partition('.')[0]}'s default"


def _check_own_option(k: PlanContext) -> None:
    value = k.get(k.option)
    if k.option == "optim.nesterov" and value:
        if not k["optim.momentum"]:
            k.reject("optim.nesterov=True needs a momentum: set optim.momentum=0.9.")
        if k.get("optim.dampening"):
            k.reject("optim.nesterov=True needs optim.dampening=0. Leave one of them out.")
    if k.option == "optim.eps" and isinstance(value, tuple) != (k["optim.name"] == "adafactor"):
        k.reject(
            f"optim.eps={value!r}: adafactor takes two numbers, such as (None, 1e-3), and every "
            "other optimizer takes one."
        )
    if k.option == "optim.adamw_lr" and not k.task_info.dense:
        k.reject(
            "optim.adamw_lr is the learning rate of what SparseAdam does not update, and here it "
            "updates everything. Leave it out."
        )
    if k.option == "optim.dampening" and value and k.task_info.sparse:
        k.reject(
            "optim.dampening with sparse gradients makes torch's momentum grow with every step. "
            "Leave it out, or build the table with sparse=False."
        )


def _adamw_lr(k: PlanContext) -> Decision | None:
    if k["optim.name"] == "muon" and k["optim.adjust_lr_fn"] != "match_rms_adamw":
        reason = "torch's default for AdamW, which updates what Muon does not"
        return k.set_or(default_of("adamw", "lr"), reason)
    if k.task_info.dense:
        return k.set_or(k["optim.lr"], "optim.lr: both change weights by similar amounts")
    return None


@rule("optim.split")
def split(k: PlanContext) -> Decision | None:
    """Tell what a second optimizer updates."""
    if k["optim.name"] == "muon":
        reason = "Muon is for hidden matrices; AdamW updates embeddings, the last layer and vectors"
        return f"{len(k.task_info.hidden)} by Muon, the rest by AdamW", reason
    if k["optim.name"] == "sparse_adam" and k.task_info.dense:
        reason = "SparseAdam takes only sparse gradients"
        return f"{len(k.task_info.sparse)} by SparseAdam, the rest by AdamW", reason
    return None


@rule("optim.implementation")
def implementation(k: PlanContext) -> Decision:
    """Use the fastest implementation that torch has for these parameters."""
    chosen, task = k["optim.name"], k.task_info
    if task.own_optimizer:
        return "own", "the Task brings its optimizer"
    if uses_deepspeed_adam(k):
        reason = "parallel.deepspeed has torch_adam=false: DeepSpeed's own, compiled at first use"
        return "deepspeed", reason
    has = optimizer_info(chosen).signature
    wanted = k.get("optim.implementation", "auto")
    why = None
    if wanted in ("fused", "foreach"):
        if wanted not in has:
            why = f"there is no {wanted} {chosen}"
        elif task.sparse:
            why = f"the gradient of {task.sparse[0]} is sparse"
        elif wanted == "fused" and not task.floating:
            why = "it takes no complex parameters"
    if why is not None:
        can = wanted == "fused" and "foreach" in has and not task.sparse
        foreach = "'foreach' or " if can else ""
        k.reject(
            f"optim.implementation={wanted!r} is not available: {why}. Use "
            f"{foreach}'for_loop', or leave it "
            "out."
        )
    if wanted != "auto":
        return k.set_value()
    if "foreach" not in has:
        return "for_loop", f"the only one of {chosen}"
    if task.sparse:
        return "for_loop", f"the gradient of {task.sparse[0]} is sparse"
    if "fused" not in has:
        return "foreach", f"torch has no fused {chosen}"
    if k.device == "mps":
        return "foreach", "not verified that the fused kernel can skip a step on mps"
    if not task.floating:
        return "foreach", "fused takes no complex parameters"
    return "fused", f"torch has it for {k.device}: one kernel, and it can skip without the host"


@rule("optim.groups")
def groups(k: PlanContext) -> Decision:
    """Check that each group does something."""
    for text in map(str, k.get("optim.groups", ())):
        group = parse_param_group(text)
        if group.weight_decay and not k.task_info.own_optimizer and not _decays(k):
            k.reject(
                f"optim.groups: {text!r} sets a weight decay, and {k['optim.name']} has none. "
                "Leave it out, or use optim.name='adamw'."
            )
        if isinstance(group.freeze, str) and k.steps(group.freeze) >= k["total_steps"]:
            k.reject(
                f"optim.groups: {text!r} freezes longer than the run of {k['total_steps']} steps. "
                "Set a shorter time, or freeze alone, for good."
            )
    return k.declared()
