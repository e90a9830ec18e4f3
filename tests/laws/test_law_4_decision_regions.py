"""Law 4: recording decision regions changes nothing of a run."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.record.records import load_records
from surestep.trainer.decision_regions import RecordRegions
from tests.laws.support.tasks import assert_same, session_of, snapshot
from tests.laws.test_law_4_draws import poisoned


class Drawing(nn.Module):
    """A model with BatchNorm and dropout that draws, counts and keeps what it gets in any mode."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(
            *(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)),
            *(nn.ReLU(), nn.Linear(16, 3)),
        )
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0
        self.generator = torch.Generator().manual_seed(5)

    def forward(self, x):
        self.calls += 1
        self.seen += x.sum().detach()
        noise = torch.randn_like(x) + torch.randn(x.shape, generator=self.generator)
        noise += float(np.random.rand() + random.random())
        return self.net(x + 0.1 * noise) * (1 + 0.01 * (self.seen + self.calls).sin())


class Points(Dataset):
    """Two classes of points, moved by each generator of the process."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        x = torch.tensor([index % 7 - 3.0, index % 5 - 2.0])
        noise = torch.randn(2) + np.random.rand() + random.random()
        return x + 0.1 * noise.float(), index % 3


def train(folder, callbacks):
    """Return the end of a run, its losses and its metrics."""
    task = surestep.Task(
        Drawing(), nn.CrossEntropyLoss(), Points(24), val={"near": Points(9), "far": Points(6)}
    )
    session = session_of(
        task,
        folder,
        callbacks=callbacks,
        logging={"every": "3 steps"},
        max_steps=6,
        batch_size=8,
        micro_batch_size=5,
        validation={"every": "2 steps"},
        average={"kind": "ema", "decay": 0.5},
    )
    with session:
        session.start_fit()
        list(session.steps())
        end = snapshot(session)
        end["calls"] = torch.tensor(session.model.calls)
        end["mode"] = torch.tensor([module.training for module in session.model.modules()])
    events = list(session.run.events())
    losses = [event["loss"] for event in events if event["event"] == "steps"]
    metrics = [event["metrics"] for event in events if event["event"] == "evaluation"]
    return end, losses, metrics


def check_recording(folder):
    """Compare a run that records decision regions with one that does not."""
    recorded = folder()
    end, losses, metrics = train(recorded, [surestep.DecisionRegions(cells=8)])
    assert list(load_records(recorded).regions) == [2, 4, 6]
    expected = train(folder(), [])
    assert_same(end, expected[0])
    assert (losses, metrics) == expected[1:]
    assert len(metrics) == 3


def test_recording_decision_regions_changes_nothing(tmp_path):
    folders = (tmp_path / name for name in ("with", "without"))
    check_recording(lambda: next(folders))


def test_recording_decision_regions_draws_nothing_by_itself(tmp_path, monkeypatch):
    called = set()
    for name in ("__init__", "on_evaluate"):
        owner = RecordRegions
        monkeypatch.setattr(owner, name, poisoned(vars(owner)[name], called))
    task = surestep.Task(Drawing(), nn.CrossEntropyLoss(), Points(24), val=Points(9))
    callbacks = [surestep.DecisionRegions(cells=8)]
    options = {"max_steps": 2, "batch_size": 8, "validation": {"every": "2 steps"}}
    with session_of(task, tmp_path / "run", callbacks=callbacks, **options) as session:
        session.start_fit()
        list(session.steps())
    assert len(called) == 2
