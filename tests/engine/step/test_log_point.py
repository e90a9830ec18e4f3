"""The report of a nonfinite step, and the speed at a log point."""

import json
import math
from types import SimpleNamespace

import torch

from surestep.engine.state.state import Progress
from surestep.engine.step.log_point import describe_nonfinite_step, read_logged
from surestep.engine.step.train_step import StepResult
from surestep.engine.step_outcome import GradNorm, Logged, StepOutcome


def test_nonfinite_step_with_sharded_gradients_reports_the_total_norm():
    norms = GradNorm(torch.tensor(math.inf), torch.empty(0), [])
    outcome, loss = StepOutcome(False, nonfinite=True), torch.tensor(2.0)
    result = StepResult(3, 0, 0.1, 4, 4, 4, Progress(), outcome, norms, loss, [])
    assert describe_nonfinite_step(result, 0.5, []) == (
        "Step 3 was not finite: its loss is 0.5, and the norm of its gradients is inf."
    )


def test_all_ranks_use_the_elapsed_time_of_rank_0():
    def all_gather_text(own):
        assert json.loads(own) == [[{}, {}], 0.5]
        return [json.dumps([[{"loss_a": [[n, 0.0]]}, {}], s]) for n, s in ((1.0, 2.0), (2.0, 0.5))]

    world = SimpleNamespace(size=2, all_gather_text=all_gather_text)
    assert read_logged([], 0.5, world) == ({"loss_a": [3.0]}, 2.0)
    assert read_logged([], 0.5, world, gone=True) == ({}, 0.5)


def test_mean_is_over_the_items_of_the_ranks_and_steps_that_logged():
    """Step 1 logs on both ranks, step 2 on one of them, step 3 on none."""

    def step(*parts):
        logged = [Logged("seen", torch.tensor(mean * items), items) for mean, items in parts]
        logged += [Logged("sum", torch.tensor(2.0))]
        progress, outcome = Progress(), StepOutcome(True)
        return StepResult(1, 0, 0.1, 4, 4, 4, progress, outcome, None, None, logged)

    ranks = [[step((1.0, 3.0)), step((10.0, 1.0)), step()], [step((9.0, 1.0)), step(), step()]]
    texts = []

    def all_gather_text(own):
        texts.append(own)
        return texts

    world = SimpleNamespace(size=2, all_gather_text=all_gather_text)
    read_logged(ranks[0], 0.5, world)
    assert read_logged(ranks[1], 0.5, world)[0] == {
        "seen": [3.0, 10.0, None],
        "sum": [4.0, 4.0, 4.0],
    }
    assert read_logged(ranks[0], 0.5)[0] == {"seen": [1.0, 10.0, None], "sum": [2.0, 2.0, 2.0]}
