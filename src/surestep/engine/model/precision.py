"""Precision as objects: what the forward runs under, and what scales the loss.

fp32 and tf32 run without autocast; bf16 and fp16 under `torch.autocast` on the device's own type;
only fp16 has a loss scale. Source: https://docs.pytorch.org/docs/stable/amp.html
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from surestep.engine.allocator import (
    reserve_huge_pages,
    retain_freed_memory,
    return_free_memory,
)
from surestep.engine.device import use_device
from surestep.engine.plan.plan import Plan
from surestep.engine.rng import use_deterministic_algorithms

_SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_PLAIN: AbstractContextManager[Any] = nullcontext()
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def place_model(model: nn.Module, plan: Plan) -> nn.Module:
    """Return the model on the Plan's device, and laid out in memory as it says."""
    model = model.to(plan.device)
    if plan.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub
    return model


def autocast(plan: Plan, *, cached: bool = True) -> AbstractContextManager[Any]:
    """Return the context of a forward; it may be entered again and again.

    Args:
        plan: its precision and device.
        cached: a weight is cast once within it; not where weights move within it.
    """
    dtype = _AUTOCAST.get(plan.precision)
    if dtype is None:
        return _PLAIN
    return torch.autocast(plan.device.type, dtype=dtype, cache_enabled=cached)


def grad_scaler(plan: Plan) -> torch.amp.GradScaler:
    """Return the loss scale; disabled, passing everything through, unless fp16 needs ours."""
    return torch.amp.GradScaler(
        plan.device.type,
        init_scale=plan.scaler_init_scale,
        growth_factor=plan.scaler_growth_factor,
        growth_interval=plan.scaler_growth_interval,
        backoff_factor=plan.scaler_backoff_factor,
        enabled=plan.guard == "scaled",
    )


@contextmanager
def torch_settings(plan: Plan) -> Iterator[None]:
    """Hold torch's process-wide settings that the Plan decides, and put the old ones back.

    What computes attention is one of them, since a block that is computed again in the backward
    must be computed by the same.

    glibc's allocator is the exception: its settings cannot be read, so they stay, and the memory
    that is free by then goes back to the kernel.
    """
    attention = _PLAIN if plan.sdpa_backend == "auto" else sdpa_kernel(_SDPA[plan.sdpa_backend])
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
    matmul = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    retains = plan.cpu_allocator != "default" and retain_freed_memory()
    if retains and plan.cpu_allocator == "huge_pages":
        reserve_huge_pages()
    try:
        if plan.deterministic:
            use_deterministic_algorithms()
        if torch.get_float32_matmul_precision() != plan.matmul_precision:
            torch.set_float32_matmul_precision(plan.matmul_precision)
        if plan.precision in ("fp32", "tf32") and plan.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"
        if plan.device.type == "cuda":
            torch.backends.cudnn.benchmark = plan.cudnn_benchmark
        with attention, use_device(plan.device):
            yield
    finally:
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if torch.get_float32_matmul_precision() != matmul:
            torch.set_float32_matmul_precision(matmul)
        if plan.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = convolution
        if retains:
            return_free_memory()
