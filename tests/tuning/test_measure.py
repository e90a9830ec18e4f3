"""What a measuring process answers, without a process."""

import sys
from types import SimpleNamespace

import pytest

from surestep.tuning.measure import Measurements
from surestep.tuning.speed.knobs import micro_batch

RECIPE = """
import torch
from torch import nn

import surestep

config = surestep.Config(epochs=1, batch_size=8, micro_batch_size=2, device="cpu")


class Net(nn.Linear):
    wide = 1

    def forward(self, x):
        return super().forward(x) + x[:, :1].expand(-1, self.wide).exp().mean(1, keepdim=True)


def task(wide: int = 1):
    def model():
        made = Net(4, 3)
        made.wide = wide
        return made

    data = torch.randn(16, 4), torch.randint(0, 3, (16,))
    return surestep.Task(model, loss="multiclass", train=data)
"""


@pytest.fixture
def measurements(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "measured_recipe.py"
    path.write_text(RECIPE)
    yield Measurements(str(path))
    sys.modules.pop("measured_recipe", None)


def test_knobs_know_what_the_step_calls_and_takes(measurements):
    knobs = ["attention_backend", "micro_batch"]
    found = measurements.describe({}, knobs)["candidates"]
    assert found["attention_backend"] == "the model calls no scaled_dot_product_attention"
    assert found["micro_batch"] == [{"micro_batch_size": 4}, {"micro_batch_size": 8}]


def test_micro_batches_that_do_not_fit_by_the_estimate_are_not_tried(measurements, monkeypatch):
    monkeypatch.setattr(micro_batch, "read_host_memory", lambda: SimpleNamespace(room=280_000))
    found = measurements.describe({"task.wide": 10_000}, ["micro_batch"])["candidates"]
    assert found["micro_batch"] == [{"micro_batch_size": 4}]  # of 160 kB; 8 samples take twice that
