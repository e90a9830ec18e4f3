"""One step of a copy of an optimizer, on small stand-ins for its parameters.

It shows what state the optimizer will keep, before its first step.
"""

import copy
import warnings
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.optim.optimizer as optimizer_module
from torch import Tensor

from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.rng import preserve_torch_rng

_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_LARGEST = 1 << 20  # elements of a stand-in: larger parameters are not tried


class Trial(NamedTuple):
    """An optimizer that has taken one step, and the parameters that its own stand in for.

    `originals` maps the id of each stand-in to the id of the parameter it was copied from.
    """

    optimizer: torch.optim.Optimizer
    originals: dict[int, int]


def try_step(optimizer: torch.optim.Optimizer) -> Trial | None:
    """Take one step of a copy of an optimizer; return None if that is not possible.

    Each group keeps its smallest parameter of each type and number of dimensions. Neither the
    optimizer nor the random generators change.
    """
    if _runs_original(optimizer):
        return None
    kept = [_smallest(group["params"]) for group in optimizer.param_groups]
    memo: dict[int, Any] = {}
    originals: dict[int, int] = {}
    for group, chosen in zip(optimizer.param_groups, kept, strict=True):
        for each in chosen.values():
            if each.numel() > _LARGEST:
                return None
            stand_in = torch.nn.Parameter(each.detach().clone(), each.requires_grad)
            stand_in.grad = torch.full_like(stand_in, 1e-3)
            memo[id(each)], originals[id(stand_in)] = stand_in, id(each)
        memo |= {id(each): memo[id(chosen[_kind(each)])] for each in group["params"]}
    # The optimizer's own code runs in it, which may not bear copies or may need a closure.
    try:
        with preserve_torch_rng(next(parameters_of(optimizer)).device), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Trial(_stepped(optimizer, memo), originals)
    except Exception:
        return None


def _runs_original(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step of a copy may run functions that know the original.

    A copy shares functions: a scheduler of torch, for one, sets `optimizer.step` to a closure over
    the original. Hooks on all optimizers see the step of a copy too.
    """
    own = vars(optimizer)
    functions = (each for each in own.values() if isinstance(each, FunctionType))
    return bool(
        "step" in own
        or any(each.__closure__ for each in functions)
        or optimizer_module._global_optimizer_pre_hooks
        or optimizer_module._global_optimizer_post_hooks
    )


def _stepped(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    # torch's own way to copy an optimizer loses the attributes of a subclass.
    copied = object.__new__(type(optimizer))
    memo[id(optimizer)] = copied
    copied.__dict__.update(copy.deepcopy(vars(optimizer), memo))
    for name in _HOOKS:
        vars(copied)[name].clear()  # they are the program's, and may write anywhere
    for group in copied.param_groups:
        group["params"] = list(dict.fromkeys(group["params"]))
    copied.step()
    return copied


def _kind(parameter: Tensor) -> tuple[torch.dtype, int]:
    return parameter.dtype, parameter.dim()


def _smallest(parameters: list[Tensor]) -> dict[tuple[torch.dtype, int], Tensor]:
    found: dict[tuple[torch.dtype, int], Tensor] = {}
    for each in parameters:
        if _kind(each) not in found or each.numel() < found[_kind(each)].numel():
            found[_kind(each)] = each
    return found
