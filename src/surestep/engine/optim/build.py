"""Make the optimizer that the Plan decided on."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from surestep.engine.optim.groups import (
    ParameterGroup,
    check_groups,
    parameter_groups,
    parameters_of,
    scale_rates,
)
from surestep.engine.parallel.single import AdamW
from surestep.engine.plan import Plan
from surestep.engine.task import ParameterGroups, Task


def build_optimizer(
    plan: Plan, task: Task, model: nn.Module, arranged: Sequence[ParameterGroup]
) -> torch.optim.Optimizer:
    """Make the optimizer that the Plan decided on, or the Task's own.

    Args:
        plan: names it.
        task: may bring it.
        model: whose parameters.
        arranged: the groups of them.

    Raises:
        TaskError: a trained parameter is in no group or in two, or a frozen one is in one.
    """
    groups = parameter_groups(arranged)
    optimizer = (
        task.optimizer(groups)
        if task.optimizer is not None
        else _MAKERS[plan.optim_name](plan, groups)
    )
    check_groups(optimizer, model)
    if task.optimizer is not None:
        scale_rates(optimizer, arranged)
    return optimizer


def _adamw(plan: Plan, groups: ParameterGroups) -> torch.optim.Optimizer:
    assert plan.optim_lr is not None
    assert plan.optim_betas is not None
    assert plan.optim_eps is not None
    return AdamW(
        groups,
        lr=plan.optim_lr,
        betas=plan.optim_betas,
        eps=plan.optim_eps,
        **_implementation(plan),
    )


def _sgd(plan: Plan, groups: ParameterGroups) -> torch.optim.Optimizer:
    assert plan.optim_lr is not None
    assert plan.optim_momentum is not None
    optimizer = torch.optim.SGD(
        groups,
        lr=plan.optim_lr,
        momentum=plan.optim_momentum,
        nesterov=bool(plan.optim_nesterov),
        **_implementation(plan),
    )
    if plan.optim_momentum:
        # torch makes the buffers in the first step, and leaves them unset if that one is skipped
        # by found_inf. Zeros give the same first step: momentum * 0 + gradient.
        for parameter in parameters_of(optimizer):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _implementation(plan: Plan) -> dict[str, Any]:
    return {plan.optim_implementation: True}


_MAKERS: dict[str, Callable[[Plan, ParameterGroups], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "sgd": _sgd,
}
