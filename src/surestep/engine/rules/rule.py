"""How a rule is written: a function that decides one option.

A rule returns a value and its reason. It calls `ctx.reject` if the option that is set cannot be
used here, with what to type instead. `ctx[...]` is what was decided for another option. Options
without a rule have the default of their declaration.
"""

from collections.abc import Callable
from typing import TypeVar

from surestep.engine.plan.context import Decision, PlanContext

Rule = Callable[[PlanContext], Decision | None]  # None: the option does not apply
_R = TypeVar("_R", bound=Rule)

RULES: dict[str, Rule] = {}

# How to start several processes.
SEVERAL = (
    "surestep train RECIPE --nproc 2 (or torchrun --nproc-per-node 2 -m surestep train RECIPE)"
)


def rule(*options: str) -> Callable[[_R], _R]:
    """Register a function as the rule of options, by the name in `ctx.option`."""

    def register(function: _R) -> _R:
        RULES.update(dict.fromkeys(options, function))
        return function

    return register
