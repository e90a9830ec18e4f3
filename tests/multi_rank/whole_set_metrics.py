"""Metrics over a full set, and predictions for a report, on each of several ranks."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import surestep
from surestep.base.errors import SurestepError
from surestep.engine.metrics import row_buffer
from tests.multi_rank.cases import data, net, net64, opened

FEW = data(samples=3)[0], torch.arange(3)  # one of four ranks has none


def auc(outputs: Tensor, targets: Tensor) -> float:
    return float(roc_auc_score(targets, outputs.softmax(dim=1), multi_class="ovr"))


def order(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """Return values that depend on the order and the number of rows."""
    weights = torch.arange(len(targets))
    return {"rows": len(targets), "order": (targets * weights).sum(), "targets": targets}


def fails(outputs: Tensor, targets: Tensor) -> float:
    if len(targets) == 103:
        raise ValueError("103 samples")
    return 0.0


def evaluated(folder: Path, metrics: dict[str, Any], size: int) -> dict[str, Any]:
    sets = {"many": data(samples=103), "few": FEW}
    made = surestep.Task(net, nn.CrossEntropyLoss(), train=data(), val=sets, metrics=metrics)
    with opened(folder, made, validation={"batch_size": size}) as session:
        return session.evaluate().with_tables()


def collect_predictions(folder: Path) -> None:
    """Evaluate classes and numbers, of many samples and of fewer than there are ranks."""
    x, y = data(samples=103, dtype=torch.float64)
    few_x, few_y = x[:3], y[:3]
    targets = {"classes": (y, few_y), "numbers": (x[:, :3].clone(), few_x[:, :3].clone())}
    for name, loss in {"classes": nn.CrossEntropyLoss(), "numbers": nn.MSELoss()}.items():
        many, few = targets[name]
        sets = {"many": (x, many), "few": (few_x, few)}
        made = surestep.Task(net64, loss, train=(x, many), val=sets)
        options = {"validation": {"batch_size": 10}, "report": {"samples": 5}}
        with opened(folder / name, made, **options) as session:
            session.evaluate()


def all_cases(folder: Path) -> dict[str, Any]:
    metrics = {"auc": surestep.whole_set(auc), "at": surestep.whole_set(order)}
    found: dict[str, Any] = {}
    for size in (1, 10, 200):
        found[f"size {size}"] = evaluated(folder / f"size-{size}", metrics, size)
    row_buffer.LIMIT = 50
    collect_predictions(folder)
    found["on disk"] = evaluated(folder / "disk", metrics, 10)
    try:
        evaluated(folder / "fails", {"m": surestep.whole_set(fails)}, 10)
    except SurestepError as error:
        found["fails"] = f"{type(error).__name__}: {error}"
    return found


def main(folder: Path) -> None:
    found = all_cases(folder)
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")
