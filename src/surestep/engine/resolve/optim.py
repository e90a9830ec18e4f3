"""The optimizer and its options."""

from typing import Any

from surestep.config.config import Config
from surestep.config.not_set import NOT_SET
from surestep.config.optim import FIND, OF_ALL, Optim
from surestep.config.param_groups import parse_param_group
from surestep.engine.optim.registry import BUILT_IN, default_of, optimizer_info, options_of
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.plan.plan import TaskInfo

FOLLOWS_LR = "optim.lr: both change weights by similar amounts"
# Options of the parameters, which hold with Task(optimizer=) too.
_OF_PARAMETERS = ("optim.groups", "optim.layerwise_lr_decay")
_OF_ONE_OPTIMIZER = [option for option in Optim.model_fields if option not in OF_ALL]


def own_options(ctx: PlanContext) -> dict[str, Any]:
    """Return the values of the options that only the chosen optimizer has."""
    return {option: ctx[f"optim.{option}"] for option in options_of(ctx["optim.name"])}


@resolves("optim.name")
def name(ctx: PlanContext) -> Decision:
    """Use AdamW, or SparseAdam for sparse gradients."""
    task = ctx.task_info
    if task.own_optimizer:
        foreign = (option for option in ctx.set_options if option.startswith("optim."))
        for option in foreign:
            if option not in _OF_PARAMETERS:
                ctx.reject(
                    f"{option} is set, but the Task brings its own optimizer. Set it there, as in "
                    "Task(optimizer=functools.partial(torch.optim.RAdam, lr=0.01)), or leave "
                    "Task(optimizer=...) out."
                )
        return "own", "the Task brings its optimizer"
    wanted = ctx.get("optim.name", default_name(task))
    _check_name(ctx, wanted)
    if task.sparse:
        reason = f"the gradient of {task.sparse[0]} is sparse: only rows that were read are updated"
        return ctx.set_or("sparse_adam", reason)
    return ctx.set_or("adamw", "trains most models without tuning; decoupled weight decay")


def default_name(task: TaskInfo) -> str:
    """Return the name of the optimizer if none is set."""
    return "sparse_adam" if task.sparse else "adamw"


def _check_name(ctx: PlanContext, wanted: str) -> None:
    task, info = ctx.task_info, optimizer_info(wanted)
    if wanted == "adamw8bit" and "bitsandbytes" not in ctx.system.extras:
        ctx.reject(
            "optim.name='adamw8bit' needs the package bitsandbytes, which is not installed. "
            "Install it: pip install bitsandbytes."
        )
    if not ctx.system.has_torch(info.since):
        ctx.reject(
            f"optim.name={wanted!r} needs torch {info.since}, and this is torch "
            f"{ctx.system.torch_version}. Install it: pip install 'torch>={info.since}'; or use "
            "optim.name='adamw'."
        )
    if not task.floating and not info.takes_complex:
        ctx.reject(
            f"optim.name={wanted!r} takes no complex parameters, and the model has some. Use "
            "optim.name='adamw'."
        )
    if task.sparse and not info.takes_sparse:
        takers = [f"optim.name={name!r}" for name, info in BUILT_IN.items() if info.takes_sparse]
        ctx.reject(
            f"optim.name={wanted!r} takes no sparse gradients, and that of {task.sparse[0]} is "
            f"sparse. Use {', '.join(takers)}; or build the table with sparse=False."
        )
    if wanted == "sparse_adam" and not task.sparse:
        ctx.reject(
            "optim.name='sparse_adam' is for sparse gradients, and the model has none. Build a "
            "table with nn.Embedding(..., sparse=True), or use optim.name='adamw'."
        )
    if wanted == "muon" and not task.hidden:
        ctx.reject(
            "optim.name='muon' updates the matrices between the first and the last layer, and "
            "this model has none. Use optim.name='adamw'."
        )
    if wanted == "lbfgs" and ctx["precision"] == "fp16":
        ctx.reject(
            "optim.name='lbfgs' compares losses and gradients of several evaluations, which "
            "precision='fp16' scales. Use precision='bf16' or 'fp32'."
        )


def _decays(ctx: PlanContext) -> bool:
    """Return whether anything decays; SparseAdam does not, the AdamW beside it does."""
    chosen = ctx["optim.name"]
    return optimizer_info(chosen).decays and (chosen != "sparse_adam" or ctx.task_info.dense)


@resolves("optim.lr", "optim.weight_decay")
def lr(ctx: PlanContext) -> Decision:
    """Use torch's default for the optimizer."""
    chosen = ctx["optim.name"]
    if ctx.task_info.own_optimizer:
        return None, "the Task's optimizer's own"
    if ctx.option == "optim.weight_decay":
        if ctx.get("optim.weight_decay") and not _decays(ctx):
            ctx.reject(
                f"optim.weight_decay={ctx.get('optim.weight_decay')!r}, but {chosen} has no weight "
                "decay. Set optim.weight_decay=0, or use optim.name='adamw'."
            )
        if not optimizer_info(chosen).decays:
            return None, f"{chosen} has none"
    elif ctx.get("optim.lr") == FIND:
        if (why := why_not_measured(chosen)) is not None:
            ctx.reject(f"optim.lr='find' measures a rate, and {why}")
        return None, f"{FIND}, set {ctx.origin('optim.lr')}: measured before step 1"
    default = float(default_of(chosen, ctx.option.removeprefix("optim.")))
    return ctx.set_or(default, _default_reason(chosen))


@resolves(*(f"optim.{option}" for option in _OF_ONE_OPTIMIZER))
def own_option(ctx: PlanContext) -> Decision | None:
    """Use the default of the optimizer's class."""
    option, chosen = ctx.option.removeprefix("optim."), ctx["optim.name"]
    if option not in options_of(chosen):
        return None
    if ctx.is_set(ctx.option):
        _check_own_option(ctx)
    if option == "adamw_lr":
        return _adamw_lr(ctx)
    return ctx.set_or(options_of(chosen)[option], _default_reason(chosen))


def without_find(config: Config) -> Config:
    """Return the config with the default of the optimizer in place of optim.lr="find"."""
    return config.replace_options({"optim.lr": NOT_SET}) if config.optim.lr == FIND else config


def why_not_measured(chosen: str) -> str | None:
    """Return why a range test cannot measure the rate of an optimizer, and what to use instead."""
    default = float(default_of(chosen, "lr"))
    if chosen == "rprop":
        return (
            "rprop reads its own only in the first step: it is the size of that step. Set a "
            f"number, such as torch's default optim.lr={default:g}, or use optim.name='adamw'."
        )
    if default == 1.0:
        return (
            f"that of {chosen} is a factor on steps whose size it chooses by itself. Set "
            "optim.lr=1.0, its default, or use optim.name='adamw'."
        )
    return None


def _default_reason(chosen: str) -> str:
    if optimizer_info(chosen).plugin is not None:
        return f"the default of {chosen}"
    return f"{optimizer_info(chosen).path.partition('.')[0]}'s default"


def _check_own_option(ctx: PlanContext) -> None:
    value = ctx.get(ctx.option)
    if ctx.option == "optim.nesterov" and value:
        if not ctx["optim.momentum"]:
            ctx.reject("optim.nesterov=True needs a momentum: set optim.momentum=0.9.")
        if ctx.get("optim.dampening"):
            ctx.reject("optim.nesterov=True needs optim.dampening=0. Leave one of them out.")
    if ctx.option == "optim.eps" and isinstance(value, tuple) != (ctx["optim.name"] == "adafactor"):
        ctx.reject(
            f"optim.eps={value!r}: adafactor takes two numbers, such as (None, 1e-3), and every "
            "other optimizer takes one."
        )
    if ctx.option == "optim.adamw_lr" and not ctx.task_info.dense:
        ctx.reject(
            "optim.adamw_lr is the learning rate of what SparseAdam does not update, and here it "
            "updates everything. Leave it out."
        )
    if ctx.option == "optim.dampening" and value and ctx.task_info.sparse:
        ctx.reject(
            "optim.dampening with sparse gradients makes torch's momentum grow with every step. "
            "Leave it out, or build the table with sparse=False."
        )


def _adamw_lr(ctx: PlanContext) -> Decision | None:
    if ctx["optim.name"] == "muon" and ctx["optim.adjust_lr_fn"] != "match_rms_adamw":
        reason = "torch's default for AdamW, which updates what Muon does not"
        return ctx.set_or(default_of("adamw", "lr"), reason)
    if ctx.task_info.dense:
        return ctx.set_or(ctx["optim.lr"], FOLLOWS_LR)
    return None


@resolves("optim.split")
def split(ctx: PlanContext) -> Decision | None:
    """Show what a second optimizer updates."""
    if ctx["optim.name"] == "muon":
        reason = "Muon is for hidden matrices; AdamW updates embeddings, the last layer and vectors"
        return f"{len(ctx.task_info.hidden)} by Muon, the rest by AdamW", reason
    if ctx["optim.name"] == "sparse_adam" and ctx.task_info.dense:
        reason = "SparseAdam takes only sparse gradients"
        return f"{len(ctx.task_info.sparse)} by SparseAdam, the rest by AdamW", reason
    return None


@resolves("optim.implementation")
def implementation(ctx: PlanContext) -> Decision:
    """Use the fastest implementation that torch has for these parameters."""
    chosen, task = ctx["optim.name"], ctx.task_info
    if task.own_optimizer:
        return "own", "the Task brings its optimizer"
    has = optimizer_info(chosen).signature
    wanted = ctx.get("optim.implementation", "auto")
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
        ctx.reject(
            f"optim.implementation={wanted!r} is not available: {why}. Use "
            f"{foreach}'for_loop', or leave it "
            "out."
        )
    on_host = ctx.device == "cpu" or ctx["parallel.offload"] != "off"
    is_wrong = chosen == "sgd" and task.half and on_host and not task.sparse
    if is_wrong and wanted in ("auto", "fused"):
        return "foreach", "torch's fused SGD computes wrong updates of 16-bit parameters on a CPU"
    if wanted != "auto":
        return ctx.set_value()
    if "foreach" not in has:
        return "for_loop", f"the only one of {chosen}"
    if task.sparse:
        return "for_loop", f"the gradient of {task.sparse[0]} is sparse"
    if "fused" not in has:
        return "foreach", f"torch has no fused {chosen}"
    if ctx.device == "mps":
        return "foreach", "not verified that the fused kernel can skip a step on mps"
    if not task.floating:
        return "foreach", "fused takes no complex parameters"
    return (
        "fused",
        f"one kernel updates everything on {ctx.device}, and can skip a bad step",
    )


@resolves("optim.groups")
def groups(ctx: PlanContext) -> Decision:
    """Check that each group does something."""
    for text in map(str, ctx.get("optim.groups", ())):
        group = parse_param_group(text)
        if group.weight_decay and not ctx.task_info.own_optimizer and not _decays(ctx):
            ctx.reject(
                f"optim.groups: {text!r} sets a weight decay, and {ctx['optim.name']} has none. "
                "Leave it out, or use optim.name='adamw'."
            )
        if isinstance(group.freeze, str) and ctx.steps(group.freeze) >= ctx["total_steps"]:
            ctx.reject(
                f"optim.groups: {text!r} freezes longer than the run of {ctx['total_steps']} "
                "steps. Set a shorter time, or freeze alone, for good."
            )
    return ctx.declared()
