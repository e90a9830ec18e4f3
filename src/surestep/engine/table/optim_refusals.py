"""Wishes about the optimizer that cannot be kept."""

from surestep.base.groups.parameters import read_group
from surestep.engine.optim.catalog import OPTIMIZERS, optimizers_with, options_of
from surestep.engine.plan import Known, Refusal
from surestep.engine.table.rows import Refusals

EVERY_OPTION = {option: None for known in OPTIMIZERS.values() for option in known.options}
USUAL = ("adamw", "sgd")  # what to say instead, where several have the option


def _name(k: Known) -> str:
    """Return the optimizer's name before it is decided: "own" has no entry and takes all."""
    if k.given.own_optimizer:
        return "own"
    return str(k.said.get("optim.name", "sparse_adam" if k.given.sparse else "adamw"))


def _takes(k: Known, trait: str) -> bool:
    name = _name(k)
    return name == "own" or bool(getattr(OPTIMIZERS[name], trait))


def _decays(k: Known) -> bool:
    """Say whether anything decays: what SparseAdam moves does not, what AdamW moves beside it."""
    return OPTIMIZERS[k["optim.name"]].decays and (
        k["optim.name"] != "sparse_adam" or k.given.dense
    )


def _refuse_foreign(option: str) -> Refusal:
    """Refuse an option that belongs to another optimizer, and name the right ones."""
    full = f"optim.{option}"

    def message(k: Known) -> str:
        own = ", ".join(f"optim.{each}" for each in sorted(options_of(k["optim.name"])))
        owners = optimizers_with(option)
        usual = next((name for name in USUAL if name in owners), owners[0])
        return (
            f"{full}={k.said[full]!r} is an option of {_listed(owners)}, but the optimizer is "
            f"{k['optim.name']}. Its own options: {own}. Say one of those, or "
            f"optim.name={usual!r}."
        )

    return Refusal(lambda k: full in k.said and option not in options_of(k["optim.name"]), message)


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _unfit(k: Known) -> str | None:
    """Say why an implementation that was said cannot be had; None where it can."""
    wish = k.said.get("optim.implementation", "auto")
    if wish not in ("fused", "foreach"):
        return None
    if wish not in OPTIMIZERS[k["optim.name"]].signature:
        return f"there is no {wish} {k['optim.name']}"
    if k.given.sparse:
        return f"the gradient of {k.given.sparse[0]} is sparse"
    return "it takes no complex parameters" if wish == "fused" and not k.given.floating else None


def _refuse_implementation(k: Known) -> str:
    signature = OPTIMIZERS[k["optim.name"]].signature
    foreach = "'foreach' or " if "foreach" in signature and not k.given.sparse else ""
    wish = k.said["optim.implementation"]
    return (
        f"optim.implementation={wish!r} cannot be had: {_unfit(k)}. Say "
        f"{foreach if wish == 'fused' else ''}'plain', or leave it out."
    )


def _takers(trait: str) -> str:
    names = [name for name, known in OPTIMIZERS.items() if getattr(known, trait)]
    return ", ".join(f"optim.name={name!r}" for name in names)


# These are of the parameters, and hold for an optimizer of the Task's own too.
_OF_PARAMETERS = ("optim.groups", "optim.layer_decay")


def _of_no_use(k: Known) -> list[str]:
    """List what is said of the optimizer."""
    return [name for name in k.said if name.startswith("optim.") and name not in _OF_PARAMETERS]


def _decayed_in_vain(k: Known) -> str | None:
    """Return a group that says to decay where nothing does."""
    said = map(str, k.said.get("optim.groups", ()))
    if k.given.own_optimizer or _decays(k):
        return None
    return next((text for text in said if read_group(text).weight_decay), None)


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
                f"{_of_no_use(k)[0]} is said, but the Task brings its own optimizer, which takes "
                "none of these options. Set it there, as in Task(optimizer=functools.partial("
                "torch.optim.RAdam, lr=0.01)), or leave "
                "Task(optimizer=...) out."
            ),
        ),
        Refusal(
            lambda k: _name(k) == "adamw8bit" and "bitsandbytes" not in k.facts.extras,
            lambda k: (
                "optim.name='adamw8bit' needs the package bitsandbytes, which is not here. "
                "Install it: pip install 'surestep[bnb]'."
            ),
        ),
        Refusal(
            lambda k: (
                not k.given.floating
                and _name(k) != "own"
                and not OPTIMIZERS[_name(k)].takes_complex
            ),
            lambda k: (
                f"optim.name={_name(k)!r} takes no complex parameters, and the model has some. "
                "Say optim.name='adamw'."
            ),
        ),
        Refusal(
            lambda k: (
                bool(k.given.sparse) and _name(k) != "own" and not OPTIMIZERS[_name(k)].takes_sparse
            ),
            lambda k: (
                f"optim.name={_name(k)!r} takes no sparse gradients, and that of "
                f"{k.given.sparse[0]} is sparse. Say {_takers('takes_sparse')}; or build the "
                "table with sparse=False."
            ),
        ),
        Refusal(
            lambda k: _name(k) == "sparse_adam" and not k.given.sparse,
            lambda k: (
                "optim.name='sparse_adam' is for sparse gradients, and the model has none. Build "
                "a table with nn.Embedding(..., sparse=True), or say optim.name='adamw'."
            ),
        ),
        Refusal(
            lambda k: _name(k) == "muon" and not k.given.hidden,
            lambda k: (
                "optim.name='muon' moves the matrices between the first table and the last layer, "
                "and this model has none. Say optim.name='adamw'."
            ),
        ),
        Refusal(
            lambda k: _name(k) == "lbfgs" and k["precision"] == "fp16",
            lambda k: (
                "optim.name='lbfgs' compares losses and gradients of many evaluations, and under "
                "precision='fp16' they come scaled. Say precision='bf16' or 'fp32'."
            ),
        ),
    ),
    "optim.weight_decay": (
        Refusal(
            lambda k: "optim.weight_decay" in k.said and not _decays(k),
            lambda k: (
                f"optim.weight_decay={k.said['optim.weight_decay']!r}, but {k['optim.name']} has "
                "no weight decay. Leave it out, or say optim.name='adamw'."
            ),
        ),
    ),
    **{f"optim.{option}": (_refuse_foreign(option),) for option in EVERY_OPTION},
    "optim.nesterov": (
        _refuse_foreign("nesterov"),
        Refusal(
            lambda k: bool(k.said.get("optim.nesterov")) and not k["optim.momentum"],
            lambda k: "optim.nesterov=True needs a momentum: say optim.momentum=0.9.",
        ),
        Refusal(
            lambda k: bool(k.said.get("optim.nesterov") and k.said.get("optim.dampening")),
            lambda k: "optim.nesterov=True needs optim.dampening=0. Leave one of them out.",
        ),
    ),
    "optim.eps": (
        _refuse_foreign("eps"),
        Refusal(
            lambda k: (
                "optim.eps" in k.said
                and isinstance(k.said["optim.eps"], tuple) != (k["optim.name"] == "adafactor")
            ),
            lambda k: (
                f"optim.eps={k.said['optim.eps']!r}: adafactor takes two numbers, such as "
                "(None, 1e-3), and every other optimizer one. Say it so, or leave it out."
            ),
        ),
    ),
    "optim.adamw_lr": (
        _refuse_foreign("adamw_lr"),
        Refusal(
            lambda k: "optim.adamw_lr" in k.said and not k.given.dense,
            lambda k: (
                "optim.adamw_lr is the rate of what SparseAdam does not move, and here it moves "
                "everything. Leave it out."
            ),
        ),
    ),
    "optim.etas": (
        _refuse_foreign("etas"),
        Refusal(
            lambda k: (
                "optim.etas" in k.said and not k.said["optim.etas"][0] < 1 < k.said["optim.etas"][1]
            ),
            lambda k: (
                f"optim.etas={k.said['optim.etas']}: a step size must be able to fall and to grow. "
                "Say a number below 1 and one above, such as (0.5, 1.2)."
            ),
        ),
    ),
    "optim.dampening": (
        _refuse_foreign("dampening"),
        Refusal(
            lambda k: bool(k.said.get("optim.dampening") and k.given.sparse),
            lambda k: (
                "optim.dampening with sparse gradients lets torch's momentum grow with every step. "
                "Leave it out, or build the table with sparse=False."
            ),
        ),
    ),
    "optim.implementation": (
        Refusal(
            lambda k: not k.given.own_optimizer and _unfit(k) is not None, _refuse_implementation
        ),
    ),
    "optim.groups": (
        Refusal(
            lambda k: _decayed_in_vain(k) is not None,
            lambda k: (
                f"optim.groups: {_decayed_in_vain(k)!r} says a decay, and {k['optim.name']} has no "
                "weight decay. Leave it out, or say optim.name='adamw'."
            ),
        ),
        Refusal(
            lambda k: _never_trained(k) is not None,
            lambda k: (
                f"optim.groups: {_never_trained(k)!r} would never end: the run has only "
                f"{k['total_steps']} steps. Say a shorter time, or freeze alone, for good."
            ),
        ),
    ),
}
