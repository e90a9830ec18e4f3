"""Wishes about the optimizer that cannot be kept."""

from surestep.config.param_groups import parse_param_group
from surestep.engine.optim.registry import BUILT_IN, optimizer_info
from surestep.engine.plan.plan import Constraint, PlanContext
from surestep.engine.rules.helpers import Refusals


def _name(k: PlanContext) -> str:
    """Return the optimizer's name before it is decided: "own" has no entry and takes all."""
    if k.task_info.own_optimizer:
        return "own"
    return str(k.set_options.get("optim.name", "sparse_adam" if k.task_info.sparse else "adamw"))


def _decays(k: PlanContext) -> bool:
    """Say whether anything decays: what SparseAdam moves does not, what AdamW moves beside it."""
    return optimizer_info(k["optim.name"]).decays and (
        k["optim.name"] != "sparse_adam" or k.task_info.dense
    )


def _unfit(k: PlanContext) -> str | None:
    """Say why an implementation that was said cannot be had; None where it can."""
    wish = k.set_options.get("optim.implementation", "auto")
    if wish not in ("fused", "foreach"):
        return None
    if wish not in optimizer_info(k["optim.name"]).signature:
        return f"there is no {wish} {k['optim.name']}"
    if k.task_info.sparse:
        return f"the gradient of {k.task_info.sparse[0]} is sparse"
    return (
        "it takes no complex parameters" if wish == "fused" and not k.task_info.floating else None
    )


def _refuse_implementation(k: PlanContext) -> str:
    signature = optimizer_info(k["optim.name"]).signature
    foreach = "'foreach' or " if "foreach" in signature and not k.task_info.sparse else ""
    wish = k.set_options["optim.implementation"]
    return (
        f"optim.implementation={wish!r} cannot be had: {_unfit(k)}. Say "
        f"{foreach if wish == 'fused' else ''}'for_loop', or leave it out."
    )


def _takers(trait: str) -> str:
    names = [name for name, known in BUILT_IN.items() if getattr(known, trait)]
    return ", ".join(f"optim.name={name!r}" for name in names)


# These are of the parameters, and hold for an optimizer of the Task's own too.
_OF_PARAMETERS = ("optim.groups", "optim.layerwise_lr_decay")


def _of_no_use(k: PlanContext) -> list[str]:
    """List what is said of the optimizer."""
    return [
        name for name in k.set_options if name.startswith("optim.") and name not in _OF_PARAMETERS
    ]


def _decayed_in_vain(k: PlanContext) -> str | None:
    """Return a group that says to decay where nothing does."""
    said = map(str, k.set_options.get("optim.groups", ()))
    if k.task_info.own_optimizer or _decays(k):
        return None
    return next((text for text in said if parse_param_group(text).weight_decay), None)


def _never_trained(k: PlanContext) -> str | None:
    """Return a group that says to freeze for longer than the run."""
    for text in k.set_options.get("optim.groups", ()):
        freeze = parse_param_group(text).freeze
        if isinstance(freeze, str) and k.steps(freeze) >= k["total_steps"]:
            return str(text)
    return None


REFUSALS: Refusals = {
    "optim.name": (
        Constraint(
            lambda k: k.task_info.own_optimizer and bool(_of_no_use(k)),
            lambda k: (
                f"{_of_no_use(k)[0]} is said, but the Task brings its own optimizer, which takes "
                "none of these options. Set it there, as in Task(optimizer=functools.partial("
                "torch.optim.RAdam, lr=0.01)), or leave "
                "Task(optimizer=...) out."
            ),
        ),
        Constraint(
            lambda k: _name(k) == "adamw8bit" and "bitsandbytes" not in k.system.extras,
            lambda k: (
                "optim.name='adamw8bit' needs the package bitsandbytes, which is not here. "
                "Install it: pip install 'surestep[bnb]'."
            ),
        ),
        Constraint(
            lambda k: (
                not k.task_info.floating
                and _name(k) != "own"
                and not optimizer_info(_name(k)).takes_complex
            ),
            lambda k: (
                f"optim.name={_name(k)!r} takes no complex parameters, and the model has some. "
                "Say optim.name='adamw'."
            ),
        ),
        Constraint(
            lambda k: (
                bool(k.task_info.sparse)
                and _name(k) != "own"
                and not optimizer_info(_name(k)).takes_sparse
            ),
            lambda k: (
                f"optim.name={_name(k)!r} takes no sparse gradients, and that of "
                f"{k.task_info.sparse[0]} is sparse. Say {_takers('takes_sparse')}; or build the "
                "table with sparse=False."
            ),
        ),
        Constraint(
            lambda k: _name(k) == "sparse_adam" and not k.task_info.sparse,
            lambda k: (
                "optim.name='sparse_adam' is for sparse gradients, and the model has none. Build "
                "a table with nn.Embedding(..., sparse=True), or say optim.name='adamw'."
            ),
        ),
        Constraint(
            lambda k: _name(k) == "muon" and not k.task_info.hidden,
            lambda k: (
                "optim.name='muon' moves the matrices between the first table and the last layer, "
                "and this model has none. Say optim.name='adamw'."
            ),
        ),
        Constraint(
            lambda k: _name(k) == "lbfgs" and k["precision"] == "fp16",
            lambda k: (
                "optim.name='lbfgs' compares losses and gradients of many evaluations, and under "
                "precision='fp16' they come scaled. Say precision='bf16' or 'fp32'."
            ),
        ),
    ),
    "optim.weight_decay": (
        Constraint(
            lambda k: "optim.weight_decay" in k.set_options and not _decays(k),
            lambda k: (
                f"optim.weight_decay={k.set_options['optim.weight_decay']!r}, but "
                f"{k['optim.name']} has "
                "no weight decay. Leave it out, or say optim.name='adamw'."
            ),
        ),
    ),
    "optim.nesterov": (
        Constraint(
            lambda k: bool(k.set_options.get("optim.nesterov")) and not k["optim.momentum"],
            lambda k: "optim.nesterov=True needs a momentum: say optim.momentum=0.9.",
        ),
        Constraint(
            lambda k: bool(
                k.set_options.get("optim.nesterov") and k.set_options.get("optim.dampening")
            ),
            lambda k: "optim.nesterov=True needs optim.dampening=0. Leave one of them out.",
        ),
    ),
    "optim.eps": (
        Constraint(
            lambda k: (
                "optim.eps" in k.set_options
                and isinstance(k.set_options["optim.eps"], tuple)
                != (k["optim.name"] == "adafactor")
            ),
            lambda k: (
                f"optim.eps={k.set_options['optim.eps']!r}: adafactor takes two numbers, such as "
                "(None, 1e-3), and every other optimizer one. Say it so, or leave it out."
            ),
        ),
    ),
    "optim.adamw_lr": (
        Constraint(
            lambda k: "optim.adamw_lr" in k.set_options and not k.task_info.dense,
            lambda k: (
                "optim.adamw_lr is the rate of what SparseAdam does not move, and here it moves "
                "everything. Leave it out."
            ),
        ),
    ),
    "optim.etas": (
        Constraint(
            lambda k: (
                "optim.etas" in k.set_options
                and not k.set_options["optim.etas"][0] < 1 < k.set_options["optim.etas"][1]
            ),
            lambda k: (
                f"optim.etas={k.set_options['optim.etas']}: a step size must be able to fall and "
                "to grow. "
                "Say a number below 1 and one above, such as (0.5, 1.2)."
            ),
        ),
    ),
    "optim.dampening": (
        Constraint(
            lambda k: bool(k.set_options.get("optim.dampening") and k.task_info.sparse),
            lambda k: (
                "optim.dampening with sparse gradients lets torch's momentum grow with every step. "
                "Leave it out, or build the table with sparse=False."
            ),
        ),
    ),
    "optim.implementation": (
        Constraint(
            lambda k: not k.task_info.own_optimizer and _unfit(k) is not None,
            _refuse_implementation,
        ),
    ),
    "optim.groups": (
        Constraint(
            lambda k: _decayed_in_vain(k) is not None,
            lambda k: (
                f"optim.groups: {_decayed_in_vain(k)!r} says a decay, and {k['optim.name']} has no "
                "weight decay. Leave it out, or say optim.name='adamw'."
            ),
        ),
        Constraint(
            lambda k: _never_trained(k) is not None,
            lambda k: (
                f"optim.groups: {_never_trained(k)!r} would never end: the run has only "
                f"{k['total_steps']} steps. Say a shorter time, or freeze alone, for good."
            ),
        ),
    ),
}
