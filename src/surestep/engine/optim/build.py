"""Build the optimizer of the Plan, or the Task's own."""

import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from surestep.base.errors import ConfigError, TaskError
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
from surestep.engine.task.task import ParameterGroups

MakeOptimizer = Callable[[Plan, ParameterGroups], torch.optim.Optimizer | None]


class CombinedOptimizer(torch.optim.Optimizer):
    """Several optimizers with the interface of one, each for its own parameters.

    Its groups are the dicts of their groups, one after another, and its state is their state.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        for part in parts:
            self.state.update(part.state)
        self._share()

    def step(self, closure: Any = None) -> Any:
        """Update the parameters once, each by its own optimizer."""
        assert closure is None, "each of the optimizers would call it"
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and options, and share them with the parts."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self.parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:end], self.state
            start = end


def build_optimizer(
    plan: Plan,
    custom: Callable[[ParameterGroups], Any] | None,
    model: nn.Module,
    arranged: Sequence[ParameterGroup],
    make_own: MakeOptimizer | None = None,
) -> torch.optim.Optimizer:
    """Build the Task's own optimizer by `custom`, or that of the Plan.

    `make_own` makes the strategy's own implementation, or returns None for torch's.

    Raises:
        TaskError: a trained parameter is in no group or in two, a frozen one is in one, or the
            Task's own optimizer cannot be built or stepped.
        ConfigError: `optim.groups` asks for what the optimizer does not have.
    """
    optimizer: torch.optim.Optimizer
    if custom is None:
        optimizer = _planned(plan, arranged, model, make_own)
        check_groups(optimizer, model)
    else:
        optimizer = _custom(custom, parameter_groups(arranged))
        check_groups(optimizer, model)
        scale_rates(optimizer, arranged)
    return optimizer


def _custom(make: Callable[[ParameterGroups], Any], groups: ParameterGroups) -> Any:
    try:
        optimizer = make(groups)
    except (TypeError, ValueError) as error:
        raise TaskError(
            f"Task(optimizer=...) could not be made from parameter groups: {error}. Give a class "
            "or function that needs nothing else, such as functools.partial(torch.optim.SGD, "
            "lr=0.1)."
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TaskError(
            f"Task(optimizer=...) returned a {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer."
        )
    if any(group.get("lr") is None for group in optimizer.param_groups):
        raise TaskError(
            f"{type(optimizer).__name__} has no 'lr' in its groups, which the schedule sets. Give "
            "it one in its defaults: super().__init__(params, {'lr': 1e-3})."
        )
    _, *arguments = inspect.signature(type(optimizer).step).parameters.values()
    if any(
        argument.default is argument.empty and argument.kind is argument.POSITIONAL_OR_KEYWORD
        for argument in arguments
    ):
        raise TaskError(
            f"{type(optimizer).__name__}.step() needs a closure, which a custom optimizer does not "
            "get. Use optim.name='lbfgs', or Task(step=...)."
        )
    return optimizer


def _planned(
    plan: Plan,
    arranged: Sequence[ParameterGroup],
    model: nn.Module,
    make_own: MakeOptimizer | None,
) -> torch.optim.Optimizer:
    info, groups = optimizer_info(plan.optim_name), parameter_groups(arranged)
    _check_sparse_decay(groups, model, plan.optim_name)
    if plan.optim_name == "muon":
        return _split(plan, arranged, hidden_matrices(model), model)
    if plan.optim_name == "sparse_adam":
        return _split(plan, arranged, sparse_embeddings(model), model)
    if not info.decays:
        groups = _join(groups, model)
    if plan.optim_name == "lbfgs" and len(groups) > 1:
        raise ConfigError(
            "optim.name='lbfgs' updates all parameters as one, and optim.groups or "
            "optim.layerwise_lr_decay gives them several rates. Leave those out, or use a "
            "different optim.name."
        )
    own = None if make_own is None else make_own(plan, groups)
    if own is not None:
        return own
    kernels = ("foreach", "fused")
    if plan.optim_implementation == "for_loop":
        chosen = {name: False for name in kernels if name in info.signature}
    else:
        chosen = {plan.optim_implementation: True}
    optimizer: torch.optim.Optimizer = info.kind(
        groups, lr=plan.optim_lr, **plan.optim_options, **chosen
    )
    if plan.optim_name == "sgd" and not plan.optim_options["dampening"]:
        _make_momentum_buffers(optimizer)
    return optimizer


def _check_sparse_decay(groups: ParameterGroups, model: nn.Module, name: str) -> None:
    """Reject weight decay of a sparse gradient, to which torch cannot add the weights."""
    tables = set(sparse_embeddings(model))
    names = {id(weight): key for key, weight in model.named_parameters() if key in tables}
    for group in groups:
        decayed = [names[id(weight)] for weight in group["params"] if id(weight) in names]
        if decayed and group.get("weight_decay"):
            raise ConfigError(
                f"optim.groups says a decay of {group['weight_decay']:g} for {group['name']!r}, "
                f"and the gradient of {decayed[0]} is sparse, which {name} does not decay. Leave "
                "it out, or build the table with sparse=False."
            )


def _split(
    plan: Plan, arranged: Sequence[ParameterGroup], names: Collection[str], model: nn.Module
) -> torch.optim.Optimizer:
    """Make the optimizer of the Plan for the named parameters, and AdamW for the rest."""
    info, options = optimizer_info(plan.optim_name), dict(plan.optim_options)
    rate, betas = options.pop("adamw_lr", None), options["betas"]
    if "betas" not in info.signature:
        del options["betas"]
    chosen = {id(weight) for name, weight in model.named_parameters() if name in names}
    groups = parameter_groups(arranged)
    own, rest = (_select(groups, chosen, wanted) for wanted in (True, False))
    if plan.optim_name == "sparse_adam":
        own = _join(own, model)
    first: torch.optim.Optimizer = info.kind(own, lr=plan.optim_lr, **options)
    if not rest:
        return first
    multiples = {group.name: group.multiple for group in arranged}
    for group in rest:
        if (multiple := multiples[group["name"]]) is not None:
            group["lr"] = rate * multiple
    fused = not any(weight.is_complex() for group in rest for weight in group["params"])
    return CombinedOptimizer(first, torch.optim.AdamW(rest, lr=rate, betas=betas, fused=fused))


def _select(groups: ParameterGroups, chosen: set[int], wanted: bool) -> ParameterGroups:
    """Return the groups with the parameters chosen by id, or with the others."""
    parts = [
        {**group, "params": [p for p in group["params"] if (id(p) in chosen) is wanted]}
        for group in groups
    ]
    return [group for group in parts if group["params"]]


def _join(groups: ParameterGroups, model: nn.Module) -> ParameterGroups:
    """Join groups of one rate, for an optimizer without decay, in the order of the parameters."""
    position = {id(weight): index for index, weight in enumerate(model.parameters())}
    joined: dict[Any, dict[str, Any]] = {}
    for group in groups:
        one = joined.setdefault(group.get("lr"), {**group, "params": []})
        one["params"] = sorted([*one["params"], *group["params"]], key=lambda p: position[id(p)])
        one.pop("weight_decay", None)
    return list(joined.values())


def _make_momentum_buffers(optimizer: torch.optim.Optimizer) -> None:
    """Make SGD's momentum buffers now, as zeros.

    torch makes them in the first step. It leaves them unset if found_inf skips that step, and of
    a sparse gradient it makes sparse ones, which grow with every step. Zeros give the same first
    step: momentum * 0 + gradient. With dampening they would not.
    """
    if optimizer.param_groups[0]["momentum"]:
        for parameter in parameters_of(optimizer):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
