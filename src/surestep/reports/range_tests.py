"""What pages and charts show of the range tests that found a learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from surestep.record.schemas import LR_FIND, validate

_MOST = 8  # curves, each with a color
_LONGEST = 1000  # points of a curve
_START = 10  # steps, whose mean loss is that of the start


def describe_range_tests(events: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what the last search for a learning rate measured; None if the run made none.

    Returns:
        "option", "lr", "why", "seeds", "curves" with "rates" and "losses", and "range": the losses
        at both ends of the axis. "trainings" has the "lr" and "losses" of short trainings, by
        rising rate. A loss that is not finite is None.
    """
    found = None
    for event in events:
        if event["event"] == "lr_find":
            try:
                found = validate(LR_FIND, dict(event))
            except ValueError:  # the file of anyone
                continue
    if found is None or not any(curve["rates"] for curve in found["curves"]):
        return None
    curves = [
        {name: curve[name][:_LONGEST] for name in ("rates", "losses")}
        for curve in found["curves"][:_MOST]
    ]
    return {
        **{name: found[name] for name in ("option", "lr")},
        "why": found["why"] + _describe_spread(found.get("spread")),
        "seeds": found["seeds"][:_MOST],
        "curves": curves,
        "range": find_range([curve["losses"] for curve in curves]),
        "trainings": sorted(
            (
                {"lr": training["lr"], "losses": training["losses"][:_MOST]}
                for training in found.get("trainings", [])[:_MOST]
            ),
            key=lambda training: training["lr"],
        ),
    }


def _describe_spread(spread: Sequence[float] | None) -> str:
    """Return what each seed alone suggests, after the reason; runs of older releases lack it."""
    if spread is None or len(spread) != 2:
        return ""
    return f"; each seed alone suggests {spread[0]:.2g} to {spread[1]:.2g}"


def find_range(curves: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    """Return the losses at the ends of an axis, which has no space for those that diverged."""
    known = [
        [loss for loss in losses if loss is not None and math.isfinite(loss)] for losses in curves
    ]
    every = [loss for losses in known for loss in losses]
    if not every:
        return 0.0, 1.0
    starts = [loss for losses in known for loss in losses[:_START]]
    low, start = min(every), sum(starts) / len(starts)
    return low, max(low, min(max(every), start + (start - low) / 2))
