"""Optimizers that hold others and step them: which there are, and what each has for itself."""

from typing import Any

import torch


def wrapped_optimizers(optimizer: torch.optim.Optimizer) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers that one holds in its attributes and steps itself, by attribute.

    Lookahead and sharpness-aware minimization are often written so.
    """
    found: dict[str, torch.optim.Optimizer] = {}
    outer = {"": optimizer}
    while outer:
        inner = {
            f"{path}{name}": value
            for path, one in outer.items()
            for name, value in vars(one).items()
            if isinstance(value, torch.optim.Optimizer)
            and not any(value is known for known in (optimizer, *found.values()))
        }
        found |= inner
        outer = {f"{path}.": one for path, one in inner.items()}
    return found


def states_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the states of an optimizer and those in it, each once, by attribute; "" is its own."""
    found: dict[str, Any] = {}
    for path, one in {"": optimizer, **wrapped_optimizers(optimizer)}.items():
        if not any(one.state is known for known in found.values()):
            found[path] = one.state
    return found


def inner_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the groups of the optimizers in one that are not its own."""
    known = list(optimizer.param_groups)
    for one in wrapped_optimizers(optimizer).values():
        known += [group for group in one.param_groups if not any(group is old for old in known)]
    return known[len(optimizer.param_groups) :]
