"""Read the curve of a run from its events."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from surestep.doctor.curves.curve import Curve, Evaluations, as_values
from surestep.record.io import read_json
from surestep.record.run import Run
from surestep.record.schemas import SIGNATURE, UNDOING

_SCORE = re.compile(r"accuracy|f1|auroc|auc|r2|dice|iou|jaccard")  # metrics of which 1 is perfect
_CLASS_LOSSES = ("CrossEntropyLoss", "cross_entropy", "multiclass")
_BINARY_LOSSES = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "binary")


class _Steps(NamedTuple):
    """The losses and rates of the steps of a log point."""

    first: int
    losses: list[float]
    rates: list[float]

    @property
    def last(self) -> int:
        """The last of the steps."""
        return self.first + len(self.losses) - 1


def read_curve(run: Run) -> Curve | None:
    """Return the curve of a run; steps that were repeated after a resume count once.

    Args:
        run: may be running.

    Returns:
        The curve. None if its steps are manual and have several losses, of which the sum has no
        curve to name.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    points: list[_Steps] = []
    evaluations: dict[int, Mapping[str, Any]] = {}
    failed_at, has_start = None, True
    for event in run.events():
        kind = event["event"]
        if kind == "steps":
            if _is_manual(event):
                return None
            point = _read_steps(event)
            if points and point.first <= points[-1].last:
                points = list(_until(points, point.first - 1))
            points.append(point)
        elif kind == "evaluation" and "measured" in event:
            evaluations[int(event["step"])] = event["metrics"]
        elif kind in UNDOING:
            step = event["step"]
            points = list(_until(points, step))
            evaluations = {at: found for at, found in evaluations.items() if at <= step}
            failed_at = None
        elif kind == "incident":
            failed_at = int(event["step"])
        elif kind == "branch":
            has_start = False
    config = run.config
    return _build_curve(run, config, points, evaluations, failed_at, has_start=has_start)


def _is_manual(event: Mapping[str, Any]) -> bool:
    return any(name.endswith("/loss") for name in event.get("logged", {}))


def _read_steps(event: Mapping[str, Any]) -> _Steps:
    losses, rates = (list(map(_as_float, event[name])) for name in ("loss", "lr"))
    return _Steps(int(event["first"]), losses, rates)


def _as_float(value: Any) -> float:
    """Return a number; NaN and infinity are text, and the loss of a step without items is null."""
    return math.nan if value is None else float(value)


def _until(points: Iterable[_Steps], step: int) -> Iterator[_Steps]:
    """Yield the steps up to one."""
    for point in points:
        count = step - point.first + 1
        if count > 0:
            yield _Steps(point.first, point.losses[:count], point.rates[:count])


def _build_curve(
    run: Run,
    config: Mapping[str, Any],
    points: Sequence[_Steps],
    evaluations: Mapping[int, Mapping[str, Any]],
    failed_at: int | None,
    *,
    has_start: bool,
) -> Curve:
    steps = [np.arange(point.first, point.last + 1.0) for point in points]
    losses = [as_values(point.losses) for point in points]
    rates = [as_values(point.rates) for point in points]
    has_rates = all(map(np.array_equal, map(np.shape, losses), map(np.shape, rates)))
    return Curve(
        np.concatenate([*steps, np.zeros(0)]),
        np.concatenate([*losses, np.zeros(0)]),
        np.concatenate(rates) if rates and has_rates else None,
        _read_evaluations(run, evaluations),
        classes=_count_classes(run, config),
        total_steps=config.get("decided", {}).get("total_steps"),
        has_start=has_start and (not points or points[0].first == 1),
        failed_at=failed_at,
        is_regularized=_is_regularized(config),
    )


def _read_evaluations(run: Run, by_step: Mapping[int, Mapping[str, Any]]) -> Evaluations:
    """Return the losses and the scores of the validation set that decides the best checkpoint."""
    monitor = run.monitor
    split = "val" if monitor is None else monitor[0].split("/")[0]
    steps = sorted(by_step)
    names = {name for found in by_step.values() for name in found if name.startswith(f"{split}/")}
    series = {
        name: as_values([_score(by_step[step].get(name)) for step in steps]) for name in names
    }
    losses = series.pop(f"{split}/loss", np.full(len(steps), np.nan))
    scores = {
        name.partition("/")[2]: values
        for name, values in sorted(series.items())
        if _SCORE.search(name.lower()) and not np.nanmax(values, initial=-np.inf) > 1
    }
    return Evaluations(as_values(steps), losses, scores)


def _score(value: Any) -> float:
    return math.nan if isinstance(value, (list, dict)) else _as_float(value)


def _count_classes(run: Run, config: Mapping[str, Any]) -> int | None:
    """Return the number of classes of a cross-entropy, by the shape of the model's output."""
    loss = config.get("loss", {})
    name = str(loss.get("called", "")).partition("(")[0]
    if name in _BINARY_LOSSES and loss.get("pos_weight") is None:
        return 2
    path = run.path / "signature.json"
    if name not in _CLASS_LOSSES or not os.path.lexists(path):
        return None
    outputs = read_json(path, SIGNATURE)["outputs"]
    shape = outputs[0]["shape"] if len(outputs) == 1 else []
    axis = -1 if loss.get("class_dim") == -1 else 1
    return shape[axis] if len(shape) > 1 and shape[axis] > 1 else None


def _is_regularized(config: Mapping[str, Any]) -> bool:
    """Return whether the training loss is harder than that of the validation, as far as known."""
    modules = config.get("modules", {}).values()
    has_dropout = any("dropout" in str(module.get("type", "")).lower() for module in modules)
    is_smoothed = bool(config.get("loss", {}).get("label_smoothing"))
    return has_dropout or is_smoothed or bool(config.get("decided", {}).get("batch_transform"))
