"""Which options mean anything with what was chosen. It needs no torch.

`--help` uses it for what is typed and for the recipe's config, `surestep plan` for the Plan.
"""

from collections.abc import Callable, Iterable
from typing import Any

from surestep.base.errors import ConfigError
from surestep.config.config import option_info
from surestep.config.optim import OF_ALL
from surestep.config.option import ON, PROCESSES, VAL_DATA, is_met
from surestep.engine.optim.registry import own_option_names
from surestep.engine.schedule.registry import schedule_info

Choice = Callable[[str], Any]  # the value of an option by its full name; None if it is not known

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
    if group == "optim" and own not in OF_ALL:
        return own in _options(own_option_names, chosen("optim.name"))
    if group == "schedule" and own != "name":
        return own in _options(lambda name: schedule_info(name).takes, chosen("schedule.name"))
    if group == "parallel" and str(chosen("parallel.ranks")) == "1":
        return False
    info = option_info(option)
    required = {} if info is None else info.requires
    return all(
        _is_met(allowed, str(chosen(name)))
        for name, allowed in required.items()
        if name not in _NOT_COMPARED
    )


def _options(names: Callable[[str], Iterable[str]], name: Any) -> Iterable[str]:
    """Return the options of an optimizer or a schedule; none if there is no working one."""
    try:
        return names(str(name))
    except (KeyError, ConfigError):
        return ()


def _is_met(allowed: Any, value: str) -> bool:
    """Compare a value that may be text, as it is typed."""
    return value not in ("None", "0", "off", "none") if allowed is ON else is_met(allowed, value)
