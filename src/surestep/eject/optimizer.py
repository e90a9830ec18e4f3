"""The optimizer of an ejected script."""

import json
from collections.abc import Sequence
from typing import Any

from torch import nn

from surestep.eject.choices import Choices, flags_of
from surestep.eject.layout import format_call, format_tuple
from surestep.engine.optim.param_groups import ParameterGroup, make_param_groups
from surestep.engine.optim.registry import optimizer_info
from surestep.engine.plan.plan import Plan


def choose_optimizer(plan: Plan, model: nn.Module) -> Choices:
    """Return what a Plan chooses of `templates/optimizers.py`."""
    groups, decays = make_param_groups(model, plan), optimizer_info(plan.optim_name).decays
    constants: dict[str, Any] = {"LR": plan.optim_lr, "WEIGHT_DECAY": plan.optim_weight_decay}
    arguments = ["lr=LR", *_list_options(plan)]
    is_all = sum(len(group.parameters) for group in groups) == len([*model.parameters()])
    is_uniform = is_all and all(group.multiple == 1 for group in groups)
    kinds = {group.weight_decay for group in groups}
    if is_uniform and (not decays or len(kinds) == 1):
        more = [f"weight_decay={_decay_text(plan, *kinds)}"] if decays else []
        build = _return_call(plan, ["model.parameters()", *arguments, *more])
        return Choices(constants=constants, renamed={"    return build(groups)": build})
    build = _return_call(plan, ["groups", *arguments])
    renamed = {"    return build(groups)": build}
    if is_uniform:
        for tables in (False, True):
            if _is_split_by_shape(groups, model, tables=tables):
                return Choices(flags_of(split=True, tables=tables), constants, renamed)
    rows = [_row_of(group) for group in groups if group.trained_from is not None]
    return Choices(
        flags_of(named=True),
        constants,
        renamed,
        (f"GROUPS = {format_tuple(rows, exploded=True)}  # names, learning rate, weight decay",),
    )


def _decay_text(plan: Plan, weight_decay: float | None) -> str:
    return "WEIGHT_DECAY" if weight_decay == plan.optim_weight_decay else repr(weight_decay)


def _return_call(plan: Plan, arguments: Sequence[str]) -> str:
    kind = optimizer_info(plan.optim_name).kind.__name__
    return format_call(f"torch.optim.{kind}", arguments, depth=4, start="return ")


def _list_options(plan: Plan) -> list[str]:
    """List the arguments of the optimizer that differ from torch's defaults, and its kernels."""
    signature = optimizer_info(plan.optim_name).signature
    options = {
        name: value for name, value in plan.optim_options.items() if value != signature[name]
    }
    if plan.optim_implementation == "for_loop":
        options |= {name: False for name in ("foreach", "fused") if name in signature}
    else:
        options[plan.optim_implementation] = True
    return [f"{name}={value!r}" for name, value in options.items()]


def _is_split_by_shape(groups: Sequence[ParameterGroup], model: nn.Module, *, tables: bool) -> bool:
    """Return whether the groups are those of matrices and of others, without embedding tables."""
    kept = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and tables}
    matrices = {id(p) for p in model.parameters() if p.dim() >= 2 and id(p) not in kept}
    decaying = {id(p) for group in groups if group.weight_decay for p in group.parameters.values()}
    return matrices == decaying


def _row_of(group: ParameterGroup) -> str:
    names = format_tuple([json.dumps(name) for name in group.parameters], depth=8)
    return format_tuple([names, repr(group.lr), repr(group.weight_decay)], depth=4)
