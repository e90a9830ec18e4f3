"""A model with other last weights, because a new one returns nearly the same for every sample."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_forward_hook

from surestep.engine.batch import map_tensors
from surestep.engine.losses.base import HALF
from surestep.engine.rng import derive_seed

_LAYERS = 3  # the last ones with a weight of their own
_VARIED = (torch.float64, torch.float32, *HALF)  # no arithmetic is defined for 8 bits
_LARGEST = 2**30  # elements in half precision above which no copy in fp32 is made
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)  # their rounding errors grow with their weights


class VariedModel:
    """Calls a model with varied weights; the model itself keeps its own.

    Weights, buffers and inputs in half precision are computed in fp32, which shows smaller
    differences; the copies are made once. The layers before the last keep their weights, so that
    the rounding stays the same.
    """

    def __init__(self, model: nn.Module, last: dict[str, nn.Parameter]) -> None:
        self._model = model
        stored = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        half = {name: tensor for name, tensor in stored.items() if tensor.dtype in HALF}
        self._widens = 0 < sum(tensor.numel() for tensor in half.values()) <= _LARGEST
        widened = {name: self._widen(tensor) for name, tensor in half.items()}
        self._last = {name: widened.get(name, weight).detach() for name, weight in last.items()}
        self._tensors = {**widened, **self._last}
        self._device = next(iter(stored.values())).device.type

    def vary(self, seed: int) -> None:
        """Add noise to the last weights as they were at first."""
        generator = torch.Generator().manual_seed(derive_seed("check", seed))
        for name, values in self._last.items():
            noise = torch.randn(values.shape, generator=generator).to(values.device, values.dtype)
            rms = float(values.square().mean().sqrt())
            scale = max(rms, math.sqrt(len(values) / values.numel()))
            self._tensors[name] = values + 3 * scale * noise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        args, kwargs = map_tensors((args, kwargs), self._widen)
        with torch.autocast(self._device, enabled=False):
            return functional_call(self._model, self._tensors, args, kwargs)

    def _widen(self, tensor: Tensor) -> Tensor:
        return tensor.float() if self._widens and tensor.dtype in HALF else tensor


def find_last_weights(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, nn.Parameter], Any]:
    """Call the model; return the matrices of its last layers by name, and its outputs.

    These layers are called once in a forward. Only plain tensors are taken: a subclass may be
    packed or quantized.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    finished: list[nn.Module] = []
    handle = register_module_forward_hook(lambda module, *_: finished.append(module))
    try:
        outputs = model(*args, **kwargs)
    finally:
        handle.remove()
    layers: list[list[nn.Parameter]] = []
    for module in reversed(finished):
        matrices = [
            parameter
            for parameter in module.parameters(recurse=False)
            if parameter.dim() > 1
            and parameter.dtype in _VARIED
            and type(parameter) in (Tensor, nn.Parameter)
            and id(parameter) in names
        ]
        if matrices and not isinstance(module, _RECURRENT) and finished.count(module) == 1:
            layers.append(matrices)
    last = {names[id(matrix)]: matrix for matrices in layers[:_LAYERS] for matrix in matrices}
    return last, outputs
