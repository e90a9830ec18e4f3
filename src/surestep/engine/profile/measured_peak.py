"""Measures the peak operations a second of a device, for those without a data sheet."""

import time

import torch

from surestep.engine.device import wait_for

_SIZE, _SIZE_ON_CUDA = 1024, 8192  # of square matrices: large enough to be limited by arithmetic
_REPEATS = 5  # of which the fastest counts: other programs use the device too


def measure_peak_flops(device: torch.device, precision: str) -> float:
    """Return the operations a second of a product of large matrices, in this process's threads.

    Args:
        device: that computes.
        precision: of a run, such as "bf16"; "tf32" is fp32 with the settings of the process.
    """
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    size = _SIZE if device.type == "cpu" else _SIZE_ON_CUDA
    matrix = torch.ones(size, size, device=device, dtype=dtype)
    fastest_s = float("inf")
    for _ in range(_REPEATS):
        wait_for(device)
        started = time.perf_counter()
        _ = matrix @ matrix
        wait_for(device)
        fastest_s = min(fastest_s, time.perf_counter() - started)
    return 2 * size**3 / fastest_s
