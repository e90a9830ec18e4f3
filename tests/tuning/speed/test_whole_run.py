"""The time of a whole run is estimated from parts that sleep for known times."""

import json
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.tuning.speed.whole_run import WholeRun, measure_whole_run

STEP_S, EVALUATION_S = 0.03, 0.2
NOW = [0.0]

RUN = WholeRun(
    steps=100,
    step_s=0.5,
    logging_s=0.1,
    evaluations=4,
    evaluation_s=2.0,
    saves=3,
    save_s=1.0,
    start_s=5.0,
    end_s=6.0,
)


def test_total_is_the_sum_of_the_parts():
    assert RUN.parts == {
        "steps": pytest.approx(40),
        "logging": 10,
        "evaluation": 8,
        "checkpoint": 3,
        "start": 5,
        "end": 6,
    }
    assert RUN.total_s == pytest.approx(72)


def test_saves_of_the_best_evaluations_are_counted_at_most():
    most = replace(RUN, best_saves=4)
    assert most.parts["checkpoint"] == 7
    assert "checkpoint (3, and at most 4 of the best)" in "\n".join(most.describe())


def test_other_steps_have_the_same_logging():
    assert RUN.with_step(0.2).total_s == pytest.approx(72 - 100 * 0.2)


def test_lines_have_the_counts_and_shares():
    text = "\n".join(RUN.describe())
    assert "The whole run takes 1 min 12 s" in text
    assert "evaluation (4)" in text
    assert "checkpoint (3)" in text


def test_number_that_is_not_known_is_named():
    text = "\n".join(replace(RUN, evaluations=None).describe())
    assert "evaluation (number not known, not counted)" in text


def test_json_has_the_parts():
    assert json.loads(json.dumps(RUN.as_dict()))["parts"]["start"] == 5


class Net(nn.Linear):
    def forward(self, x):
        NOW[0] += STEP_S if self.training else EVALUATION_S
        return super().forward(x)


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: NOW[0])


def test_parts_have_the_times_that_they_sleep(clock):
    torch.manual_seed(0)
    x, y = torch.randn(32, 4), torch.randint(0, 3, (32,))
    task = surestep.Task(Net(4, 3), loss="multiclass", train=(x, y), val=(x, y))
    options = {
        **{"batch_size": 8, "max_steps": 40, "device": "cpu", "optim": "sgd"},
        "validation": {"every": "10 steps", "batch_size": 16},
        "checkpoint": {"every": "20 steps"},
    }
    found = measure_whole_run(task, surestep.Config(**options), seconds=0.5)
    assert found.steps == 40
    assert found.step_s == pytest.approx(STEP_S)
    assert (found.evaluations, found.evaluation_s) == (4, pytest.approx(2 * EVALUATION_S))
    assert found.saves == 1  # that of the last step is at the end
    assert found.best_saves == 3
    assert found.parts["steps"] == pytest.approx(40 * STEP_S)
    assert found.parts["evaluation"] == pytest.approx(8 * EVALUATION_S)


def test_no_time_is_rejected():
    with pytest.raises(ConfigError, match=r"seconds=0 .* above 0"):
        measure_whole_run(None, None, seconds=0)
