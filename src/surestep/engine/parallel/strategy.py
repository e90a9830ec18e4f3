"""The strategies by name: one file each, and one entry here or an entry point of a package."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from surestep.base.plugins import STRATEGIES, load_plugin

if TYPE_CHECKING:
    from surestep.engine.parallel.base import Strategy

# Imported when chosen: FSDP takes half a second.
BUILT_IN = {
    "single": "single:SingleProcessStrategy",
    "ddp": "ddp:DDPStrategy",
    "fsdp": "fsdp:FSDPStrategy",
    "deepspeed": "deepspeed.strategy:DeepSpeedStrategy",
    "accelerate": "accelerate:AccelerateStrategy",
}


@cache
def strategy_class(name: str) -> type["Strategy"]:
    """Return the class of a strategy, by the value of `parallel.strategy`."""
    if name in BUILT_IN:
        module, _, kind = BUILT_IN[name].partition(":")
        found = getattr(import_module(f"surestep.engine.parallel.{module}"), kind)
    else:
        from surestep.engine.parallel.base import Strategy

        found = load_plugin(STRATEGIES, name, Strategy)
    strategy: type[Strategy] = found
    return strategy
