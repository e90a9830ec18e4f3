"""What an ejected script freezes, for good or until a step."""

import json
import math
from collections.abc import Iterator, Mapping

from torch import nn

from surestep.base.errors import RecipeError
from surestep.eject.choices import Choices, flags_of
from surestep.eject.templates.program import NORMS
from surestep.engine.model.preserve import NORMS as ALL_NORMS
from surestep.engine.optim.freezing import norm_starts
from surestep.engine.optim.param_groups import make_param_groups
from surestep.engine.plan.plan import Plan


def choose_freezing(plan: Plan, model: nn.Module) -> Choices:
    """Return what the groups of a Plan freeze.

    Raises:
        RecipeError: they freeze a part of a module.
    """
    groups = make_param_groups(model, plan)
    starts = {
        id(parameter): math.inf if group.trained_from is None else group.trained_from
        for group in groups
        for parameter in group.parameters.values()
    }
    modules = dict(_frozen_modules(model, starts))
    if not any(starts.values()):
        return Choices()
    _check(plan, model, starts, modules)
    members = [
        f"    {json.dumps(name)}: {'math.inf' if start == math.inf else start},\n"
        for name, start in modules.items()
    ]
    norms = any(
        isinstance(part, NORMS) for name in modules for part in model.get_submodule(name).modules()
    )
    comment = "# The first step in which a module is trained.\n"
    code = f"{comment}TRAINED_FROM: dict[str, float] = {{\n{''.join(members)}}}"
    return Choices(flags_of(freezes=True, norms=norms), code=(code,))


def _frozen_modules(
    module: nn.Module, starts: Mapping[int, float], name: str = ""
) -> Iterator[tuple[str, float]]:
    """Yield the outermost modules whose parameters all begin at one step, with that step."""
    own = {starts.get(id(parameter), 0.0) for parameter in module.parameters()}
    if len(own) == 1 and name:
        (start,) = own
        if start:
            yield name, start
        return
    for child, part in module.named_children():
        yield from _frozen_modules(part, starts, f"{name}.{child}" if name else child)


def _check(
    plan: Plan, model: nn.Module, starts: Mapping[int, float], modules: Mapping[str, float]
) -> None:
    """Check that the modules freeze what the groups do."""
    parts = {name: model.get_submodule(name) for name in modules}
    found = {id(p): modules[name] for name, part in parts.items() for p in part.parameters()}
    norms = {
        id(module): (modules[name], isinstance(module, NORMS))
        for name, part in parts.items()
        for module in part.modules()
        if isinstance(module, ALL_NORMS)
    }
    groups = make_param_groups(model, plan)
    wanted = {
        key: (start, True) for key, start in norm_starts(model, plan, groups).items() if start
    }
    if found != {key: start for key, start in starts.items() if start} or norms != wanted:
        raise RecipeError(
            "optim.groups freezes a part of a module, or an InstanceNorm, and eject prints the "
            "freezing of whole modules with BatchNorm. Write 'NAME freeze' for a module NAME."
        )
