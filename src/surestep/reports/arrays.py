"""Arrays in the data of a page, several times smaller than as text."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)
_EXACT = 2.0**24  # 32 bits hold all integers up to it
_SMALLEST = float(np.finfo(np.float32).tiny)


def encode_values(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return numbers as 32-bit ones, or as 64-bit ones if 32 bits cannot hold one of them.

    Of a number, 32 bits hold 7 digits. They cannot hold one that is too large or too small, or an
    integer of more digits.
    """
    size = np.abs(values[np.isfinite(values) & (values != 0)])
    fits = not len(size) or (size.max() <= _LARGEST and size.min() >= _SMALLEST)
    if fits:
        long = size[(size > _EXACT) & (size == np.floor(size))]
        fits = bool((long.astype(np.float32) == long).all())
    return _encode(values, "<f4" if fits else "<f8")


def encode_steps(steps: NDArray[np.int64]) -> dict[str, Any]:
    """Return integers that rise, as the differences of each to the one before."""
    steps = np.asarray(steps, dtype=np.int64)
    differences = np.diff(steps)
    most = int(differences.max(initial=0))
    kind = "<u2" if most < 2**16 else "<u4" if most < 2**32 else "<f8"
    first = int(steps[0]) if len(steps) else 0
    return {"first": first, **_encode(differences, kind), "count": len(steps)}


def _encode(values: NDArray[Any], kind: str) -> dict[str, Any]:
    return {"type": kind[1:], "base64": base64.b64encode(values.astype(kind).tobytes()).decode()}
