"""SS204: layers in plain lists or dicts, which the model does not register."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.locations import locate_class
from surestep.doctor.wording import list_names
from surestep.trainer.review.case import Case


def find(case: Case) -> Iterator[Problem]:
    """Find trainable parameters in attributes of modules, which the model does not register."""
    model = case.loop.state.model
    registered = {id(parameter) for parameter in model.parameters()}
    for optimizer in case.loop.state.optimizers.values():
        registered |= {id(p) for group in optimizer.param_groups for p in group["params"]}
    owners, has_gradient = {}, False
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if not isinstance(value, (list, tuple, dict)):
                continue
            hidden = [p for p in _parameters(value) if p.requires_grad and id(p) not in registered]
            if hidden:
                owners[f"{name}.{attribute}".lstrip(".")] = module
                has_gradient |= any(p.grad is not None for p in hidden)
    if owners:
        yield Problem(
            f"The model holds layers in plain lists or dicts ({list_names(owners)}), so they are "
            "not registered: not trained, not moved to the device, and not saved.",
            {"attributes": list(owners)},
            "Use nn.ModuleList or nn.ModuleDict; requires_grad_(False) if nothing should train "
            "them.",
            "error" if has_gradient else "warning",  # without one, it may be a teacher
            locate_class(next(iter(owners.values()))),
        )


def _parameters(
    value: list[Any] | tuple[Any, ...] | dict[Any, Any], depth: int = 4
) -> Iterator[nn.Parameter]:
    items: Iterable[Any] = value.values() if isinstance(value, dict) else value
    for item in items:
        if isinstance(item, nn.Parameter):
            yield item
        elif isinstance(item, nn.Module):
            yield from item.parameters()
        elif isinstance(item, (list, tuple, dict)) and depth:
            yield from _parameters(item, depth - 1)
