"""Which options mean anything with what was chosen. It needs no torch.

`--help` uses it for what is typed and for the recipe's config, `surestep plan` for the Plan.
"""

from collections.abc import Callable, Mapping
from typing import Any

from surestep.config.config import option_info
from surestep.config.optim import Optim
from surestep.config.option import ON, PROCESSES, VAL_DATA, is_met
from surestep.engine.schedule.registry import CATALOG

Choice = Callable[[str], Any]  # the value of an option by its full name; None if it is not known

_ADAM = ("betas", "eps")
# The options of each optimizer: those of torch's class, as the registry reads them.
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

# What an option may require and no value of a choice shows, so that it decides no relevance.
_NOT_COMPARED = ("device", "parallel.backend", "parallel.strategy", VAL_DATA, PROCESSES)
_ALWAYS = ("average.kind", "parallel.strategy")  # others require these


def applies(option: str, chosen: Choice) -> bool:
    """Return whether an option means anything with what was chosen.

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
    if group == "parallel" and str(chosen("parallel.ranks")) == "1":
        return False
    info = option_info(option)
    required = {} if info is None else info.requires
    return all(
        _is_met(allowed, str(chosen(name)))
        for name, allowed in required.items()
        if name not in _NOT_COMPARED
    )


def _is_met(allowed: Any, value: str) -> bool:
    """Compare a value that may be text, as it is typed."""
    return value not in ("None", "0", "off", "none") if allowed is ON else is_met(allowed, value)
