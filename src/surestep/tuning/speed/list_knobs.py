"""List the knobs from their folder."""

from importlib import import_module
from pkgutil import iter_modules

from surestep.tuning.speed import knobs
from surestep.tuning.speed.knob import Knob


def list_knobs() -> dict[str, Knob]:
    """Return all knobs by name, in alphabetical order."""
    return {name: _load(name) for name in sorted(m.name for m in iter_modules(knobs.__path__))}


def _load(name: str) -> Knob:
    module = import_module(f"{knobs.__name__}.{name}")
    title, _, _ = str(module.__doc__).partition("\n")
    return Knob(
        name,
        title,
        module.SHARES,
        module.KEEPS_NUMBERS,
        module.candidates,
        getattr(module, "IS_PROCESS_WIDE", False),
        getattr(module, "BEGINS_IN_EPOCH_2", False),
        getattr(module, "STARTS_SLOWLY", False),
        getattr(module, "IS_COUNT", False),
    )
