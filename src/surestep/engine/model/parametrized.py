"""Parameters that make a tensor of a module, such as those of a weight or spectral norm.

`torch.nn.utils.parametrizations` keeps them in a part of the module, and the older functions of
`torch.nn.utils` under other names. They have the role of the tensor that they make.
"""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def _lists_of(module: nn.Module) -> dict[str, ParametrizationList]:
    """Return the parametrizations of a module, by the name of the tensor that they make."""
    if not is_parametrized(module):
        return {}
    return dict(module.parametrizations.items())  # type: ignore[operator, union-attr]


def own_parameters(module: nn.Module, *names: str) -> list[nn.Parameter]:
    """Return the parameters of a module without those of its parts, and those that make them.

    Args:
        module: the module.
        names: of the tensors of the module; the default is all.
    """
    plain = module.named_parameters(recurse=False)
    found = [parameter for name, parameter in plain if name in names or not names]
    for name, parametrization in _lists_of(module).items():
        if name in names or not names:
            found += parametrization.parameters()
    return found


def own_children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of a module, except parametrizations of its own tensors."""
    of_tensors = module.parametrizations if is_parametrized(module) else None
    for name, child in module.named_children():
        if child is not of_tensors:
            yield name, child


def made_shapes(model: nn.Module) -> dict[int, torch.Size]:
    """Return the shape of the tensor that a parameter makes, by its id, if it makes one."""
    shapes: dict[int, torch.Size] = {}
    for module in model.modules():
        for parametrization in _lists_of(module).values():
            shape = _made_shape(parametrization)
            for parameter in parametrization.parameters(recurse=False):
                shapes[id(parameter)] = shape
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (SpectralNorm, WeightNorm)):
                ends = ("orig",) if isinstance(hook, SpectralNorm) else ("v", "g")
                parts = own_parameters(module, *(f"{hook.name}_{end}" for end in ends))
                whole = max(parts, key=torch.numel, default=None)
                if whole is not None:
                    shapes |= {id(part): whole.shape for part in parts}
    return shapes


def _made_shape(parametrization: ParametrizationList) -> torch.Size:
    """Compute the shape without values: it changes no buffer and draws no random numbers."""
    originals = list(parametrization.parameters(recurse=False))
    with suppress(Exception), torch.no_grad():  # custom code may need values
        tensors = (*parametrization.named_parameters(), *parametrization.named_buffers())
        empty = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            for name, tensor in tensors
        }
        made: torch.Tensor = torch.func.functional_call(parametrization, empty, ())
        return made.shape
    return max(originals, key=torch.numel).shape
