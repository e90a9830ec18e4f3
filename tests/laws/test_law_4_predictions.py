"""Law 4: collecting predictions for a report changes nothing of a run."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.engine.evaluate.collect_predictions import PredictionCollector
from surestep.record.predictions import read_predictions
from surestep.trainer.record_predictions import RecordPredictions
from tests.laws.support.tasks import Augmented, assert_same, rows, snapshot, with_batchnorm
from tests.laws.test_law_4_draws import poisoned

Folder = Callable[[], Path]


class Noisy:
    """The sum of the outputs with noise of each generator."""

    def reset(self) -> None:
        self.total = 0.0

    def update(self, outputs: Tensor, y: Tensor) -> None:
        noise = torch.randn_like(outputs) + np.random.rand() + random.random()
        self.total += float((outputs + noise).sum())

    def compute(self) -> float:
        return self.total


def train(folder: Path, samples: int | None, loss: Any, classes: bool) -> tuple[Any, Any, Any]:
    """Return the end of a run, its steps and its evaluations."""
    x, y = rows(24)
    val = {"drawn": Augmented(15), "stored": (x, y)}
    if not classes:
        x, y = x, x[:, :3].clone()
        val = {"stored": (x, y)}
    task = surestep.Task(
        with_batchnorm(),
        loss,
        Augmented(24) if classes else (x, y),
        val=val,
        metrics={"noisy": Noisy()} if classes else {},
    )
    config = surestep.Config(
        max_steps=6,
        batch_size=8,
        micro_batch_size=5,
        validation={"every": "2 steps", "batch_size": 10},
        average={"kind": "ema", "decay": 0.5},
        doctor={"check_data": "off"},
        logging={"progress": "quiet", "every": "3 steps"},
        report={"samples": samples},
    )
    with surestep.prepare(task, config, run=folder) as session:
        session.start_fit()
        list(session.steps())
        end = snapshot(session)
    events = list(session.run.events())
    losses = [event["loss"] for event in events if event["event"] == "steps"]
    metrics = [event["metrics"] for event in events if event["event"] == "evaluation"]
    return end, losses, metrics


def check_collecting(
    folder: Folder, loss: Any = None, classes: bool = True, samples: int = 4
) -> None:
    """Compare a run that collects predictions with one that does not."""
    loss = loss or nn.CrossEntropyLoss()
    collected, plain = folder(), folder()
    end, losses, metrics = train(collected, samples, loss, classes)
    expected = train(plain, None, loss, classes)
    assert_same(end, expected[0])
    assert (losses, metrics) == expected[1:]
    assert len(metrics) > 2
    found = read_predictions(collected)
    assert found is not None
    assert all(one["kind"] != "none" for one in found["evaluations"][0]["sets"])
    assert read_predictions(plain) is None


@pytest.mark.parametrize(
    ("loss", "classes"),
    [(nn.CrossEntropyLoss(), True), ("mae", False)],
)
def test_collecting_predictions_changes_nothing(tmp_path, loss, classes):
    folders = (tmp_path / str(number) for number in range(2))
    check_collecting(lambda: next(folders), loss, classes)


def check_nothing_drawn(folder: Folder) -> None:
    """Check that nothing that collects predictions draws from a global generator."""
    called = set[Any]()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (PredictionCollector, "add"),
            (PredictionCollector, "gather"),
            (RecordPredictions, "on_evaluate"),
        ):
            patch.setattr(owner, name, poisoned(vars(owner)[name], called))
        train(folder(), 4, nn.CrossEntropyLoss(), True)
    assert len(called) == 3


def test_collecting_draws_nothing(tmp_path):
    check_nothing_drawn(lambda: tmp_path)
