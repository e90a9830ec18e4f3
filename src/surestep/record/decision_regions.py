"""What a classifier predicts in the plane of its two inputs, as the events of a run have it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = 255  # the class of a cell whose outputs are not finite
MOST_CLASSES = 64
MOST_CELLS = 256  # in each direction
_ONE = 255  # a confidence of 1

Cells = NDArray[np.uint8]
Ends = tuple[float, float]


@dataclass(frozen=True, eq=False)
class DecisionRegions:
    """What a model predicts in each cell of a square grid; the first row is the upper one.

    Attributes:
        step: the step that was evaluated.
        measured: "weights" or "average".
        x: the left and the right end of the grid, in units of the first input.
        y: the lower and the upper end, in units of the second input.
        n_classes: among how many classes the model chooses.
        classes: (cells, cells); UNKNOWN if the outputs are not finite.
        confidence: the probability of the class, from 0 to 255, (cells, cells).
    """

    step: int
    measured: str
    x: Ends
    y: Ends
    n_classes: int
    classes: Cells
    confidence: Cells


def encode_regions(regions: DecisionRegions) -> dict[str, Any]:
    """Return the fields of the event."""
    content = regions.classes.tobytes() + regions.confidence.tobytes()
    return {
        **{"step": regions.step, "measured": regions.measured},
        **{"x": list(regions.x), "y": list(regions.y)},
        **{"n_classes": regions.n_classes, "cells": len(regions.classes)},
        "content": base64.b64encode(zlib.compress(content, 9)).decode(),
    }


def decode_regions(event: Mapping[str, Any]) -> DecisionRegions:
    """Return the regions of an event that fits its schema.

    Raises:
        ValueError: the content is damaged.
    """
    cells, n_classes = event["cells"], event["n_classes"]
    size = cells * cells
    try:
        packed = base64.b64decode(event["content"], validate=True)
        content = zlib.decompressobj().decompress(packed, 2 * size)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(content) != 2 * size:
        raise ValueError(f"it has {len(content)} bytes for {cells} x {cells} cells")
    classes, confidence = np.frombuffer(content, np.uint8).reshape(2, cells, cells)
    if not ((classes < n_classes) | (classes == UNKNOWN)).all():
        raise ValueError(f"it has a class above {n_classes - 1}")
    if not all(low < high for low, high in (event["x"], event["y"])):
        raise ValueError("an axis ends where it starts")
    return DecisionRegions(
        event["step"],
        event["measured"],
        tuple(event["x"]),
        tuple(event["y"]),
        n_classes,
        classes,
        confidence,
    )


def as_confidence(probability: NDArray[np.floating[Any]]) -> Cells:
    """Return probabilities in 1/255, rounded; 0 for those that are not finite."""
    known = np.nan_to_num(probability, nan=0.0, posinf=0.0, neginf=0.0)
    found: Cells = np.rint(known.clip(0, 1) * _ONE).astype(np.uint8)
    return found
