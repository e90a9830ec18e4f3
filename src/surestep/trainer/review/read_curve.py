"""Read the curve of a run from its events."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from surestep.doctor.curves.curve import Curve, Evaluations, as_values
from surestep.record.io import read_json
from surestep.record.records import Records, load_records
from surestep.record.run import Run
from surestep.record.schemas import SIGNATURE, UNDOING

_SCORE = re.compile(r"accuracy|f1|auroc|auc|r2|dice|iou|jaccard")  # metrics of which 1 is perfect
_CLASS_LOSSES = ("CrossEntropyLoss", "cross_entropy", "multiclass")
_BINARY_LOSSES = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits", "binary")


def read_curve(run: Run, records: Records | None = None) -> Curve | None:
    """Return the curve of a run; steps that were repeated after a resume count once.

    Args:
        run: may be running.
        records: of the run, if they were read already.

    Returns:
        The curve. None if its steps are manual and have several losses, of which the sum has no
        curve to name.

    Raises:
        RunError: a file of the run is missing, or cannot be read.
    """
    if records is None:
        records = load_records(run.path)
    history, config = records.history, run.config
    if any(map(_is_loss_of_manual_step, history)):
        return None
    evaluations: dict[int, Mapping[str, Any]] = {}
    failed_at, has_start = None, True
    for event in records.events:
        kind = event["event"]
        if kind == "evaluation" and "measured" in event:
            evaluations[int(event["step"])] = event["metrics"]
        elif kind in UNDOING:
            step = event["step"]
            evaluations = {at: found for at, found in evaluations.items() if at <= step}
            failed_at = None
        elif kind == "incident":
            failed_at = int(event["step"])
        elif kind == "branch":
            has_start = False
    rows = np.searchsorted(history.steps, records.trained)
    rates = history["lr"][rows]
    return Curve(
        records.trained.astype(np.float64),
        history["train/loss"][rows],
        rates if np.isfinite(rates).all() and len(rates) else None,
        _read_evaluations(run, evaluations),
        classes=_count_classes(run, config),
        total_steps=config.get("decided", {}).get("total_steps"),
        has_start=has_start and (not len(rows) or int(records.trained[0]) == 1),
        failed_at=failed_at,
        is_regularized=_is_regularized(config),
    )


def _is_loss_of_manual_step(column: str) -> bool:
    return column.startswith("train/") and column.endswith("/loss") and column != "train/loss"


def _as_float(value: Any) -> float:
    """Return a number; NaN and infinity are text, and the loss of a step without items is null."""
    return math.nan if value is None else float(value)


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
    loss = _read_loss(config)
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
    is_smoothed = bool(_read_loss(config).get("label_smoothing"))
    return has_dropout or is_smoothed or bool(config.get("decided", {}).get("batch_transform"))


def _read_loss(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is recorded of the loss; nothing if a file of anyone has no dict there."""
    loss = config.get("loss")
    return loss if isinstance(loss, dict) else {}
