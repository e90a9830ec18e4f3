"""Fill a model that only the first rank has with values, a part at a time.

The other ranks have its shapes, on torch's meta device. So its first values are drawn once, by the
code that would draw them in one process, and no other rank ever has the whole of it.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surestep.base.errors import ParallelError
from surestep.engine.distributed.shards import is_sharded


@torch.no_grad()
def broadcast_weights(module: nn.Module, device: torch.device) -> None:
    """Let all ranks have the first one's tensors of a module, whole and on the device.

    What is cut already is left. A tensor that stands in several places stays one.
    """
    made: dict[int, Tensor] = {}
    kept: list[Tensor] = []  # what `made` knows by its address
    for part in module.modules():
        for slots in (part._parameters, part._buffers):
            for name, each in slots.items():
                if each is None or is_sharded(each):
                    continue
                if id(each) not in made:
                    kept.append(each)
                    made[id(each)] = _sent(each, device)
                slots[name] = made[id(each)]  # type: ignore[assignment]  # as it was


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor with the first rank's values."""
    if tensor.is_meta:
        sent = torch.empty_like(tensor, device=device)
        if isinstance(tensor, nn.Parameter):
            sent = nn.Parameter(sent, requires_grad=tensor.requires_grad)
    else:
        tensor.data = tensor.data.to(device)
        sent = tensor
    dist.broadcast(sent.data, 0)
    return sent


def check_filled(model: nn.Module) -> None:
    """Check that nothing of a model is without values.

    Raises:
        ParallelError: a tensor is neither a parameter nor a buffer.
    """
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                raise ParallelError(
                    f"{name + '.' if name else ''}{key} is a tensor that is neither a parameter "
                    "nor a buffer, so parallel.meta_init=True cannot send it. Say "
                    f"self.register_buffer({key!r}, ...) in its module, or leave "
                    "parallel.meta_init out."
                )
