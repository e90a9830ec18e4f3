"""The optimizer."""

from typing import Any

from surestep.base.groups.parameters import read_group
from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table.rows import Refusals, Rows, default, plain, said


def _of_optimizer(name: str, option: str, value: Any, reason: str) -> tuple[Row, ...]:
    """Rows of an option that only the optimizer `name` has."""
    return (
        said(option),
        Row(lambda k: k["optim.name"] == name, lambda _: value, reason),
        default(None, "not an option of {k[optim.name]}"),
    )


def _refuse_foreign(option: str, name: str) -> Refusal:
    """Refuse an option that belongs to another optimizer."""
    return Refusal(
        lambda k: option in k.said and k["optim.name"] != name,
        lambda k: (
            f"{option}={k.said[option]!r} is an option of {name}, but the optimizer is "
            f"{k['optim.name']}. Leave it out, or say optim.name={name!r}."
        ),
    )


ROWS: Rows = {
    "optim.name": (
        Row(lambda k: k.given.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        said("optim.name"),
        default("adamw", "trains most models without tuning; decay decoupled from the rate"),
    ),
    "optim.implementation": (
        Row(lambda k: k.given.own_optimizer, lambda _: "own", "the Task brings its optimizer"),
        Row(
            lambda k: k.given.floating,
            lambda _: "fused",
            "torch has it for {k[device]}: one kernel, and it can skip without the host",
        ),
        default("foreach", "fused takes no complex parameters"),
    ),
    "optim.lr": (
        said("optim.lr"),
        Row(lambda k: k.given.own_optimizer, lambda _: None, "the Task's optimizer's own"),
        default(1e-3, "torch's default"),
    ),
    "optim.weight_decay": (
        said("optim.weight_decay"),
        Row(lambda k: k["optim.name"] == "adamw", lambda _: 1e-2, "torch's default for AdamW"),
        Row(lambda k: k.given.own_optimizer, lambda _: None, "the Task's optimizer's own"),
        default(0.0, "torch's default for SGD"),
    ),
    "optim.betas": _of_optimizer("adamw", "optim.betas", (0.9, 0.999), "torch's default"),
    "optim.eps": _of_optimizer("adamw", "optim.eps", 1e-8, "torch's default"),
    "optim.momentum": _of_optimizer("sgd", "optim.momentum", 0.0, "torch's default"),
    "optim.nesterov": _of_optimizer("sgd", "optim.nesterov", False, "torch's default"),
    "optim.groups": plain("optim.groups", (), "nothing said: all parameters by the same options"),
    "optim.layer_decay": plain("optim.layer_decay", None, "nothing said: one rate for all layers"),
}

# These are of the parameters, and hold for an optimizer of the Task's own too.
_OF_PARAMETERS = ("optim.groups", "optim.layer_decay")


def _of_no_use(k: Known) -> list[str]:
    """List what is said of the optimizer."""
    return [name for name in k.said if name.startswith("optim.") and name not in _OF_PARAMETERS]


def _never_trained(k: Known) -> str | None:
    """Return a group that says to freeze for longer than the run."""
    for text in k.said.get("optim.groups", ()):
        freeze = read_group(text).freeze
        if isinstance(freeze, str) and k.steps(freeze) >= k["total_steps"]:
            return str(text)
    return None


REFUSALS: Refusals = {
    "optim.name": (
        Refusal(
            lambda k: k.given.own_optimizer and bool(_of_no_use(k)),
            lambda k: (
                f"{_of_no_use(k)[0]} is said, but the Task brings "
                "its own optimizer, which takes none of these options. Set it there, or leave "
                "Task(optimizer=...) out."
            ),
        ),
    ),
    "optim.betas": (_refuse_foreign("optim.betas", "adamw"),),
    "optim.eps": (_refuse_foreign("optim.eps", "adamw"),),
    "optim.momentum": (_refuse_foreign("optim.momentum", "sgd"),),
    "optim.nesterov": (
        _refuse_foreign("optim.nesterov", "sgd"),
        Refusal(
            lambda k: bool(k.said.get("optim.nesterov")) and not k["optim.momentum"],
            lambda k: "optim.nesterov=True needs a momentum: say optim.momentum=0.9.",
        ),
    ),
    "optim.groups": (
        Refusal(
            lambda k: _never_trained(k) is not None,
            lambda k: (
                f"optim.groups: {_never_trained(k)!r} would never end: the run has only "
                f"{k['total_steps']} steps. Say a shorter time, or freeze alone, for good."
            ),
        ),
    ),
}
