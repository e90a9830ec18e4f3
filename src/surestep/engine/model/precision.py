"""Precision: the context of a forward, the loss scale, and torch's process-wide settings.

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
    """Return the model on the Plan's device, in its memory format."""
    model = model.to(plan.device)
    if plan.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub
    return model


def autocast(plan: Plan, *, cached: bool = True) -> AbstractContextManager[Any]:
    """Return the context of a forward; it can be entered repeatedly.

    `cached`: a weight is cast once within it; not if weights change within it.
    """
    dtype = _AUTOCAST.get(plan.precision)
    if dtype is None:
        return _PLAIN
    return torch.autocast(plan.device.type, dtype=dtype, cache_enabled=cached)


def grad_scaler(plan: Plan) -> torch.amp.GradScaler:
    """Return the loss scale; disabled unless fp16 needs it."""
    return torch.amp.GradScaler(
        plan.device.type,
        init_scale=plan.scaler_init_scale,
        growth_factor=plan.scaler_growth_factor,
        growth_interval=plan.scaler_growth_interval,
        backoff_factor=plan.scaler_backoff_factor,
        enabled=plan.guard == "grad_scaler",
    )


@contextmanager
def torch_settings(plan: Plan) -> Iterator[None]:
    """Set torch's process-wide settings by the Plan, and restore them.

    The attention backend is one, since a recomputed block must use the same. Those of glibc's
    allocator cannot be read, so they stay; free memory is returned to the kernel.
    """
    attention = _PLAIN if plan.sdpa_backend == "auto" else sdpa_kernel(_SDPA[plan.sdpa_backend])
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark)
    matmul = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    threads = torch.get_num_threads()
    retains = plan.cpu_allocator != "default" and retain_freed_memory()
    if retains and plan.cpu_allocator == "huge_pages":
        reserve_huge_pages()
    try:
        if plan.num_threads is not None:
            torch.set_num_threads(plan.num_threads)
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
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if torch.get_float32_matmul_precision() != matmul:
            torch.set_float32_matmul_precision(matmul)
        if plan.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = convolution
        if retains:
            return_free_memory()
