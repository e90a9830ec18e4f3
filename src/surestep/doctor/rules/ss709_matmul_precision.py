"""Matrix products of float32 on a GPU do not use its fast units.

Since Ampere, GPUs multiply matrices of float32 several times faster if the factors are rounded to
TF32, with 10 bits of mantissa; sums stay in float32. PyTorch leaves this off. Most training is not
affected by it. With autocast most products are in bfloat16 or float16, and this changes little.

Ignore it if the model needs all bits, as some simulations do.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere

Wrong:

    import torch
    from torch import nn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        x = torch.randn(8, 512, device=device)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        x = torch.randn(4, 512)
        optimizer.zero_grad()
        (model(x) - x).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import nn

SEVERITY = "info"
FIX = 'Call torch.set_float32_matmul_precision("high") before training.'
_FEWEST = 10  # products
_SMALLEST = 512  # of both sides of a weight: smaller products are limited by memory
_CAPABILITY = 8  # of Ampere


class MatmulPrecisionWatcher(Watcher):
    """Count large products of float32 on a GPU."""

    def __init__(self) -> None:
        self._products = Tally()  # that were slow

    def after_forward(
        self, run: Script, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        if not is_tensor(output) or not output.is_cuda or self._products.mistakes >= _FEWEST:
            return
        import torch

        if not isinstance(module, torch.nn.Linear):
            return
        capability = torch.cuda.get_device_capability(output.device)[0]
        is_float32 = output.dtype is torch.float32
        precision = torch.get_float32_matmul_precision()
        if is_float32 and is_slow(capability, precision, tuple(module.weight.shape)):
            self._products.add_here(run)

    def observe(self, run: Script) -> Iterator[Problem]:
        products = self._products.mistakes
        if products >= _FEWEST:
            yield self._products.report(
                f"At least {products} large products of float32 on a GPU had the precision "
                '"highest".',
                {"products": products},
            )


def is_slow(capability: int, precision: str, shape: tuple[int, ...]) -> bool:
    """Return whether a product of float32 could be faster.

    Args:
        capability: the first number of the compute capability of the GPU.
        precision: of `torch.get_float32_matmul_precision()`.
        shape: of the weight.
    """
    return capability >= _CAPABILITY and precision == "highest" and min(shape) >= _SMALLEST
