"""Make the optimizer that the Plan decided on."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError
from surestep.engine.optim.combined import CombinedOptimizer
from surestep.engine.optim.param_groups import (
    ParameterGroup,
    check_groups,
    parameter_groups,
    parameters_of,
    scale_rates,
)
from surestep.engine.optim.param_roles import hidden_matrices, sparse_embeddings
from surestep.engine.optim.registry import optimizer_info
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import ParameterGroups, Task

MakeOptimizer = Callable[[Plan, ParameterGroups], torch.optim.Optimizer | None]


def no_own_optimizer(plan: Plan, groups: ParameterGroups) -> torch.optim.Optimizer | None:
    """Use torch's class."""


def build_optimizer(
    plan: Plan,
    task: Task,
    model: nn.Module,
    arranged: Sequence[ParameterGroup],
    make_own: MakeOptimizer = no_own_optimizer,
) -> torch.optim.Optimizer:
    """Make the optimizer that the Plan decided on, or the Task's own.

    Args:
        plan: names it.
        task: may bring it.
        model: whose parameters.
        arranged: the groups of them.
        make_own: makes the strategy's own implementation, or returns None for torch's.

    Raises:
        TaskError: a trained parameter is in no group or in two, a frozen one is in one, or the
            Task's own optimizer cannot be made or stepped.
    """
    groups = parameter_groups(arranged)
    optimizer = (
        _named(plan, groups, model, make_own) if task.optimizer is None else _own(task, groups)
    )
    check_groups(optimizer, model)
    if task.optimizer is not None:
        scale_rates(optimizer, arranged)
    elif isinstance(optimizer, CombinedOptimizer):
        _scale_rest(optimizer, arranged)
    return optimizer


def _own(task: Task, groups: ParameterGroups) -> torch.optim.Optimizer:
    assert task.optimizer is not None
    try:
        optimizer = task.optimizer(groups)
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"Task(optimizer=...) could not be made from parameter groups: {error}. Give a class "
            "or function that needs nothing else, such as functools.partial(torch.optim.SGD, "
            "lr=0.1)."
        ) from error
    rates = [group.get("lr") for group in getattr(optimizer, "param_groups", ())]
    if None in rates:
        raise TaskError(
            f"{type(optimizer).__name__} has no 'lr' in its groups, which the schedule sets. Give "
            "it one in its defaults: super().__init__(params, {'lr': 1e-3})."
        )
    step = getattr(type(optimizer), "step", None)
    if step is not None and _needs_closure(step):
        raise TaskError(
            f"{type(optimizer).__name__}.step() needs a closure, which an optimizer of your own is "
            "not given. Say optim.name='lbfgs', or take the steps yourself."
        )
    return optimizer


def _needs_closure(step: Any) -> bool:
    parameters = list(inspect.signature(step).parameters.values())[1:]
    return any(
        each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        for each in parameters
    )


def _named(
    plan: Plan, groups: ParameterGroups, model: nn.Module, make_own: MakeOptimizer
) -> torch.optim.Optimizer:
    if plan.optim_name == "muon":
        return _split(plan, groups, hidden_matrices(model), model)
    if plan.optim_name == "sparse_adam":
        return _split(plan, groups, sparse_embeddings(model), model)
    if not optimizer_info(plan.optim_name).decays:
        groups = _as_one(groups, model, plan.optim_name)
    if plan.optim_name == "lbfgs" and len(groups) > 1:
        raise ConfigError(
            "optim.name='lbfgs' moves all parameters as one, and optim.groups or "
            "optim.layerwise_lr_decay "
            "gives them several rates. Leave those out, or say another optim.name."
        )
    _refuse_decayed_tables(groups, model, plan.optim_name)
    own = make_own(plan, groups)
    if own is not None:
        return own
    optimizer: torch.optim.Optimizer = optimizer_info(plan.optim_name).kind(
        groups, lr=plan.optim_lr, **plan.optim_options, **_kernels(plan)
    )
    if plan.optim_name == "sgd" and not plan.optim_options["dampening"]:
        _make_momentum_buffers(optimizer)
    return optimizer


def _refuse_decayed_tables(groups: ParameterGroups, model: nn.Module, name: str) -> None:
    """Refuse a decay of what has a sparse gradient: torch cannot add the weights to it.

    Raises:
        ConfigError: a group says one.
    """
    tables = set(sparse_embeddings(model))
    names = {id(each): key for key, each in model.named_parameters() if key in tables}
    for group in groups:
        found = [names[id(each)] for each in group["params"] if id(each) in names]
        if found and group.get("weight_decay"):
            raise ConfigError(
                f"optim.groups says a decay of {group['weight_decay']:g} for {group['name']!r}, "
                f"and the gradient of {found[0]} is sparse, which {name} does not decay. Leave it "
                "out, or build the table with sparse=False."
            )


def _kernels(plan: Plan) -> dict[str, bool]:
    """Return the arguments that choose an implementation, as far as the class has them."""
    known = optimizer_info(plan.optim_name).signature
    if plan.optim_implementation == "for_loop":
        return {name: False for name in ("foreach", "fused") if name in known}
    return {plan.optim_implementation: True}


def _split(
    plan: Plan, groups: ParameterGroups, names: list[str], model: nn.Module
) -> torch.optim.Optimizer:
    """Make the optimizer of the Plan for the parameters named, and AdamW for the rest."""
    chosen = {id(each) for name, each in model.named_parameters() if name in set(names)}
    own, rest = _divided(groups, chosen)
    if plan.optim_name == "sparse_adam":
        own = _as_one(own, model, "SparseAdam")
    kind: Any = optimizer_info(plan.optim_name).kind
    options = dict(plan.optim_options)
    rate, betas = options.pop("adamw_lr", None), options["betas"]
    if "betas" not in optimizer_info(plan.optim_name).signature:
        del options["betas"]
    first: torch.optim.Optimizer = kind(own, lr=plan.optim_lr, **options)
    if not rest:
        return first
    fused = not any(each.is_complex() for group in rest for each in group["params"])
    return CombinedOptimizer(first, torch.optim.AdamW(rest, lr=rate, betas=betas, fused=fused))


def _scale_rest(optimizer: CombinedOptimizer, arranged: Sequence[ParameterGroup]) -> None:
    """Let the groups of the second optimizer have their multiples of its own rate."""
    multiples = {group.name: group.multiple for group in arranged}
    second = optimizer.parts[1]
    for group in second.param_groups:
        multiple = multiples[group["name"]]
        if multiple is not None:
            group["lr"] = second.defaults["lr"] * multiple


def _divided(groups: ParameterGroups, chosen: set[int]) -> tuple[ParameterGroups, ParameterGroups]:
    """Cut each group in two: the parameters chosen by id, and the others."""
    halves: list[ParameterGroups] = []
    for wanted in (True, False):
        cut = [
            {**group, "params": [p for p in group["params"] if (id(p) in chosen) is wanted]}
            for group in groups
        ]
        halves.append([group for group in cut if group["params"]])
    return halves[0], halves[1]


def _as_one(groups: ParameterGroups, model: nn.Module, name: str) -> ParameterGroups:
    """Join groups for an optimizer without decay: in the order of model.parameters().

    Raises:
        ConfigError: a decay was said of a group.
    """
    for group in groups:
        if group.get("weight_decay"):
            raise ConfigError(
                f"optim.groups says a decay of {group['weight_decay']:g} for {group['name']!r}, "
                f"and {name} has none. Leave it out, or say optim.name='adamw'."
            )
    place = {id(each): index for index, each in enumerate(model.parameters())}
    joined: dict[Any, dict[str, Any]] = {}
    for group in groups:
        one = joined.setdefault(group.get("lr"), {**group, "params": []})
        one["params"] = sorted([*one["params"], *group["params"]], key=lambda p: place[id(p)])
        one.pop("weight_decay", None)
    return list(joined.values())


def _make_momentum_buffers(optimizer: torch.optim.Optimizer) -> None:
    """Make SGD's momentum buffers now, as zeros.

    torch makes them in the first step. It leaves them unset where found_inf skips that one, and of
    a sparse gradient it makes sparse ones, which grow with every step. Zeros give the same first
    step: momentum * 0 + gradient. With dampening they would not.
    """
    if optimizer.param_groups[0]["momentum"]:
        for parameter in parameters_of(optimizer):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
