"""The most floating point operations a second that a device can do, where that is known."""

from typing import Literal

# Dense products, in 10^12 a second, from NVIDIA's data sheets; the first name that fits counts.
# Source: https://www.nvidia.com/en-us/data-center/ (a data sheet for each product)
PEAKS: dict[str, dict[str, float]] = {
    "H200": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "H100 PCIe": {"bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51},
    "H100": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "A100": {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5},
    "L40S": {"bf16": 362, "fp16": 362, "tf32": 183, "fp32": 91.6},
    "L4": {"bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3},
    "A10": {"bf16": 125, "fp16": 125, "tf32": 62.5, "fp32": 31.2},
    "V100": {"fp16": 125, "fp32": 15.7},
    "T4": {"fp16": 65, "fp32": 8.1},
}


def peak_flops(device: str, precision: Literal["fp32", "tf32", "bf16", "fp16"]) -> float | None:
    """Return the operations a second of a device by its name; None where they are not known."""
    found = next((peaks for name, peaks in PEAKS.items() if name in device), {})
    return found[precision] * 1e12 if precision in found else None
