"""Precision as objects: what the forward runs under, and what scales the loss.

fp32 and tf32 run without autocast; bf16 and fp16 under `torch.autocast` on the device's own type;
only fp16 has a loss scale. Source: https://docs.pytorch.org/docs/stable/amp.html
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from surestep.engine.plan import Plan
from surestep.engine.seed import use_deterministic_algorithms

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(plan: Plan, *, cached: bool = True) -> AbstractContextManager[Any]:
    """Return the context of a forward; it may be entered again and again.

    Args:
        plan: its precision and device.
        cached: a weight is cast once within it; not where weights move within it.
    """
    dtype = _AUTOCAST.get(plan.precision)
    if dtype is None:
        return nullcontext()
    return torch.autocast(plan.device.type, dtype=dtype, cache_enabled=cached)


def grad_scaler(plan: Plan) -> torch.amp.GradScaler:
    """Return the loss scale; disabled, and then passing everything through, unless fp16."""
    return torch.amp.GradScaler(
        plan.device.type,
        init_scale=plan.scaler_init_scale,
        growth_factor=plan.scaler_growth_factor,
        growth_interval=plan.scaler_growth_interval,
        backoff_factor=plan.scaler_backoff_factor,
        enabled=plan.precision == "fp16",
    )


@contextmanager
def process_settings(plan: Plan) -> Iterator[None]:
    """Hold torch's process-wide settings that the Plan decides, and put the old ones back."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
    matmul = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    try:
        if plan.deterministic:
            use_deterministic_algorithms()
        if plan.precision in ("fp32", "tf32") and plan.device.type == "cuda":
            torch.set_float32_matmul_precision("high" if plan.precision == "tf32" else "highest")
            torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"
        yield
    finally:
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if plan.device.type == "cuda":
            torch.set_float32_matmul_precision(matmul)
            torch.backends.cudnn.allow_tf32 = convolution
