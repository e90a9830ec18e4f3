"""The report of a nonfinite step, and the speed at a log point."""

import json
import math
from types import SimpleNamespace

import torch

from surestep.engine.state.state import Progress
from surestep.engine.step.log_point import describe_nonfinite_step, read_logged
from surestep.engine.step.train_step import StepResult
from surestep.engine.step_outcome import GradNorm, StepOutcome


def test_nonfinite_step_with_sharded_gradients_reports_the_total_norm():
    norms = GradNorm(torch.tensor(math.inf), torch.empty(0), [])
    outcome, loss = StepOutcome(False, nonfinite=True), torch.tensor(2.0)
    result = StepResult(3, 0, 0.1, 4, 4, 4, Progress(), outcome, norms, loss, [])
    assert describe_nonfinite_step(result, 0.5, []) == (
        "Step 3 was not finite: its loss is 0.5, and the norm of its gradients is inf."
    )


def test_all_ranks_use_the_elapsed_time_of_rank_0():
    def all_gather_text(own):
        assert json.loads(own) == [{}, 0.5]
        return [json.dumps([{"loss_a": [1.0]}, 2.0]), json.dumps([{"loss_a": [2.0]}, 0.5])]

    world = SimpleNamespace(size=2, all_gather_text=all_gather_text)
    assert read_logged([], 0.5, world) == ({"loss_a": [3.0]}, 2.0)
    assert read_logged([], 0.5, world, gone=True) == ({}, 0.5)
