"""Buffers that a model's state_dict leaves out, where training moves them.

Most are tables that follow from the sizes of the model, such as masks and rotary angles: no
checkpoint need hold them. What differs from what was built is part of the State.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


def built(model: nn.Module) -> dict[str, Tensor]:
    """Copy the buffers that a state_dict leaves out to the host, by name; waits for the device."""
    return {name: _host(owner._buffers[key]).clone() for name, owner, key in _slots(model)}


def moved(model: nn.Module, before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those that are not as they were built; waits for the device."""
    found: dict[str, Tensor] = {}
    for name, owner, key in _slots(model):
        now = owner._buffers[key]
        if name in before and now is not None and not torch.equal(_host(now), before[name]):
            found[name] = now
    return found


@torch.no_grad()
def put(model: nn.Module, before: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Give the buffers these values; those that are not named are as they were built.

    One that has grown meanwhile, as tables do, is replaced.
    """
    for name, owner, key in _slots(model):
        now, value = owner._buffers[key], values.get(name, before.get(name))
        if now is None or value is None:
            continue
        if now.shape == value.shape:
            now.copy_(value)
        else:
            owner._buffers[key] = value.to(now.device, now.dtype, copy=True)


def _slots(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    for prefix, module in model.named_modules():
        for key in sorted(module._non_persistent_buffers_set):
            if module._buffers.get(key) is not None:
                yield f"{prefix}.{key}" if prefix else key, module, key


def _host(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor.detach().cpu()
