"""What a report can show of the input of a sample: a small picture, token ids, or numbers."""

import base64
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surestep.engine.batch import MicroBatch, flatten_tensors

PICTURE_PIXELS = 96  # of the longer side
_IDS = 128
_NUMBERS = 32
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


def describe_input(batch: MicroBatch, row: int, rows: int) -> dict[str, Any]:
    """Return what can be shown of the input in one row of a micro-batch.

    Args:
        batch: a micro-batch, on any device.
        row: of the sample.
        rows: how many the outputs have; other tensors have no row for each sample.

    Returns:
        "kind", "shape" (of the sample) and the content: "pixels" of a picture (base64 of uint8,
        height * width * channels), "values" of integers or numbers; or "why" there is nothing.
    """
    tensors = [
        tensor[row]
        for tensor in flatten_tensors((batch.args, dict(batch.kwargs)))
        if tensor.dim() and len(tensor) == rows
    ]
    if not tensors:
        return {"kind": "none", "why": "no tensor of the inputs has a row for each sample"}
    for tensor in tensors:
        if tensor.dim() == 3 and tensor.shape[0] in (1, 3) and min(tensor.shape) > 0:
            return _picture(tensor)
        if tensor.dim() == 1 and tensor.dtype in _INTEGERS and len(tensor) > 1:
            values = tensor[:_IDS].tolist()
            return {"kind": "integers", "shape": [len(tensor)], "values": values}
    shape = list(tensors[0].shape)
    if len(tensors) > 1 and all(tensor.dim() == 0 for tensor in tensors):
        shape = [len(tensors)]  # columns of a table
    return {"kind": "numbers", "shape": shape, "values": list(_numbers(tensors))}


def _numbers(tensors: list[Tensor]) -> Iterator[float]:
    left = _NUMBERS
    for tensor in tensors:
        if left > 0 and not tensor.is_complex():
            yield from tensor.reshape(-1)[:left].float().tolist()
            left -= tensor.numel()


def _picture(tensor: Tensor) -> dict[str, Any]:
    """Return a picture in 8 bits; values outside of [0, 1] are scaled from the whole range."""
    shape = list(tensor.shape)
    pixels = tensor.permute(1, 2, 0).cpu()
    found: dict[str, Any] = {"kind": "picture", "shape": shape}
    if pixels.dtype is torch.uint8:
        values = pixels.numpy().astype(np.float64)
    else:
        values = np.nan_to_num(pixels.double().numpy(), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = float(values.min()), float(values.max())
        if low < 0 or high > 1:
            found["range"] = [low, high]
            values = (values - low) / ((high - low) or 1.0)
        values = values * 255
    small = shrink(values, PICTURE_PIXELS)
    found["size"] = list(small.shape)
    found["pixels"] = base64.b64encode(small.tobytes()).decode()
    return found


def shrink(values: NDArray[Any], most: int) -> NDArray[np.uint8]:
    """Return a picture whose longer side has at most `most` pixels, each a mean of those under it.

    Args:
        values: (height, width, channels), from 0 to 255.
        most: pixels of the longer side.
    """
    values = values.astype(np.float64)
    factor = min(1.0, most / max(values.shape[:2]))
    for axis in (0, 1):
        size = values.shape[axis]
        wanted = max(1, math.floor(size * factor))
        starts = np.arange(wanted) * size // wanted
        lengths = np.diff([*starts, size])
        sums = np.add.reduceat(values, starts, axis=axis)
        values = sums / lengths.reshape([-1 if axis == one else 1 for one in range(3)])
    return np.rint(values).astype(np.uint8)
