"""Which options mean anything beside what was chosen. It needs no torch.

`--help` asks it of what is typed and of the recipe's config, `surestep plan` of the Plan.
"""

from collections.abc import Callable, Mapping
from typing import Any

from surestep.config.optim import Optim
from surestep.engine.schedule.registry import CATALOG

Choice = Callable[[str], Any]  # the value of an option by its full name; None if it is not known

_ADAM = ("betas", "eps")
# The own options of each optimizer: the ones of torch's class, as the catalog reads them.
OWN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "adadelta": ("rho", "eps"),
    "adafactor": ("beta2_decay", "eps", "d"),
    "adagrad": ("lr_decay", "initial_accumulator_value", "eps"),
    "adam": (*_ADAM, "amsgrad", "decoupled_weight_decay"),
    "adamax": _ADAM,
    "adamw": (*_ADAM, "amsgrad"),
    "adamw8bit": (*_ADAM, "min_8bit_size"),
    "asgd": ("lambd", "alpha", "t0"),
    "lbfgs": (
        *("max_iter", "max_eval", "tolerance_grad", "tolerance_change"),
        *("history_size", "line_search_fn"),
    ),
    "muon": (
        *("momentum", "nesterov", "ns_coefficients", "eps", "ns_steps"),
        *("adjust_lr_fn", "adamw_lr", "betas"),
    ),
    "nadam": (*_ADAM, "momentum_decay", "decoupled_weight_decay"),
    "radam": (*_ADAM, "decoupled_weight_decay"),
    "rmsprop": ("alpha", "eps", "momentum", "centered"),
    "rprop": ("etas", "step_sizes"),
    "sgd": ("momentum", "dampening", "nesterov"),
    "sparse_adam": (*_ADAM, "adamw_lr"),
}
_OF_ANY = frozenset(Optim.model_fields).difference(*OWN_OPTIONS.values())

# Options, by name or group, with the choice that they go by and what it must be.
_ONLY_WHERE: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "scaler.": ("precision", lambda value: value == "fp16"),
    "average.": ("average.kind", lambda value: value != "none"),
    "early_stop.min_delta": ("early_stop.patience", lambda value: value != "None"),
    "data.persistent_workers": ("data.num_workers", lambda value: value != "0"),
    "data.prefetch_factor": ("data.num_workers", lambda value: value != "0"),
    "compile_blocks": ("compile", lambda value: value != "off"),
    "max_nonfinite_steps": ("on_nonfinite", lambda value: value == "skip"),
    "max_rollbacks": ("on_spike", lambda value: value == "rollback"),
    "parallel.": ("parallel.ranks", lambda value: value != "1"),
}
_ALWAYS = ("average.kind", "parallel.strategy")  # what such a condition goes by


def applies(option: str, chosen: Choice) -> bool:
    """Say whether an option means anything beside what was chosen.

    Args:
        option: its full name.
        chosen: returns the value of another option.
    """
    if option in _ALWAYS:
        return True
    group, _, own = option.rpartition(".")
    if group == "optim" and own not in _OF_ANY:
        return own in OWN_OPTIONS.get(str(chosen("optim.name")), ())
    if group == "schedule" and own != "name":
        entry = CATALOG.get(str(chosen("schedule.name")))
        return entry is not None and own in entry.takes
    return all(
        holds(str(chosen(choice)))
        for name, (choice, holds) in _ONLY_WHERE.items()
        if option.startswith(name)
    )
