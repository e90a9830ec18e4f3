"""A model with other last weights, for a loss that the model computes itself.

A new model gives nearly the same loss for every token, and outputs that are hidden in the model
cannot be varied. Other weights in its last layers vary them. The layers before stay as they are, so
that the numbers do not depend on rounding more than they did.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook

from surestep.engine.batch import map_tensors
from surestep.engine.losses.base import HALF

_LAYERS = 3  # the last ones with a weight of their own
_VARIED = (torch.float64, torch.float32, *HALF)  # no arithmetic is defined for 8 bits
_LARGEST = 2**30  # elements in half precision above which no copy in fp32 is made
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)  # whose rounding errors grow with their weights


class VariedModel:
    """Calls a model with varied weights; the model itself keeps its own.

    Weights, buffers and inputs in half precision are computed in fp32, which shows smaller
    differences.

    Args:
        model: as it is. Copies in fp32 are made once, for all that `vary` does.
        last: the weights to vary, by name.
    """

    def __init__(self, model: nn.Module, last: dict[str, nn.Parameter]) -> None:
        self._model = model
        stored = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        half = {name: each for name, each in stored.items() if each.dtype in HALF}
        self._widens = 0 < sum(each.numel() for each in half.values()) <= _LARGEST
        widened = {name: self._widened(each) for name, each in half.items()}
        self._last = {name: widened.get(name, weight).detach() for name, weight in last.items()}
        self._tensors = {**widened, **self._last}
        self._device = next(iter(stored.values())).device.type

    def vary(self, seed: int) -> None:
        """Add noise to the last weights as they were at first.

        Args:
            seed: of the noise.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, values in self._last.items():
            noise = torch.randn(values.shape, generator=generator).to(values.device, values.dtype)
            size = max(
                float(values.square().mean().sqrt()), math.sqrt(len(values) / values.numel())
            )
            self._tensors[name] = values + 3 * size * noise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        args, kwargs = map_tensors((args, kwargs), self._widened)
        with torch.autocast(self._device, enabled=False):
            return functional_call(self._model, self._tensors, args, kwargs)

    def _widened(self, tensor: Tensor) -> Tensor:
        return tensor.float() if self._widens and tensor.dtype in HALF else tensor


def find_last_weights(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, nn.Parameter]:
    """Return the matrices of the last layers that are called once in a forward, by name.

    Only plain tensors are taken: a subclass may be packed or quantized.
    """
    names = {id(each): name for name, each in model.named_parameters()}
    finished: list[nn.Module] = []

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        finished.append(module)

    handle = register_module_forward_hook(leave)
    try:
        model(*args, **kwargs)
    finally:
        handle.remove()
    found: list[list[nn.Parameter]] = []
    for module in reversed(finished):
        matrices = [
            each
            for each in module.parameters(recurse=False)
            if each.dim() > 1
            and each.dtype in _VARIED
            and type(each) in (Tensor, nn.Parameter)
            and id(each) in names
        ]
        if matrices and not isinstance(module, _RECURRENT) and finished.count(module) == 1:
            found.append(matrices)
    return {names[id(each)]: each for matrices in found[:_LAYERS] for each in matrices}
