"""Clipping: gradients are scaled to a norm, or each value is limited."""

from collections.abc import Sequence

import torch
from torch import Tensor

from surestep.engine import private


def clip_gradients(
    grads: Sequence[Tensor],
    total: Tensor,
    max_norm: float | None,
    clip_value: float | None,
    *,
    is_uniform: bool = True,
) -> None:
    """Clip gradients in place, as torch does, bit for bit; without a limit do nothing.

    Args:
        grads: of one process.
        total: their norm, over all ranks, ().
        max_norm: what the norm is limited to.
        clip_value: what the absolute of each value is limited to, without `max_norm`.
        is_uniform: all have the same device and dtype.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html
    """
    if max_norm is not None:
        factor = torch.add(total, 1e-6).reciprocal_().mul_(max_norm).clamp_(max=1.0)
        if is_uniform:
            private.foreach_mul_(grads, factor.to(grads[0].device))
        else:
            for grad in grads:
                grad.mul_(factor)
    elif clip_value is not None:
        private.foreach_clamp_min_(grads, -clip_value)
        private.foreach_clamp_max_(grads, clip_value)
