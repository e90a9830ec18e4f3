"""The report of a nonfinite step, and the speed at a log point."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from surestep.engine.batch import Batch
from surestep.engine.state.state import Progress
from surestep.engine.step.log_point import (
    SkippedStep,
    describe_nonfinite_step,
    is_fatal,
    nonfinite_error,
    read_logged,
    skipped_step,
)
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


def test_mean_that_is_called_like_a_term_of_the_loss_has_a_longer_name():
    logged = [Logged("a", torch.tensor(2.0)), Logged("a", torch.tensor(6.0), 2.0)]
    logged += [Logged("b", torch.tensor(6.0), 2.0)]
    result = StepResult(1, 0, 0.1, 4, 4, 4, Progress(), StepOutcome(True), None, None, logged)
    assert read_logged([result], 0.5)[0] == {"a": [2.0], "logged_a": [3.0], "b": [3.0]}


FLAG, NAN = torch.zeros(()), math.nan


@pytest.mark.parametrize(
    ("flag", "known", "loss", "norm", "fatal"),
    [
        (FLAG, False, 1.0, 1.0, False),
        (FLAG, False, NAN, 1.0, True),
        (FLAG, False, 1.0, math.inf, True),
        (FLAG, False, None, None, False),
        (None, False, NAN, NAN, False),  # the host has skipped it
        (None, True, 1.0, 1.0, True),
    ],
)
def test_step_is_fatal_if_the_device_decides_and_a_value_is_not_finite(
    flag, known, loss, norm, fatal
):
    outcome = StepOutcome(True, flag)
    result = StepResult(1, 0, 0.1, 4, 4, 4, Progress(), outcome, None, None, [], known)
    assert is_fatal(result, loss, norm) is fatal


@pytest.mark.parametrize(("loss", "shown"), [(0.0, 0.0), (2.5, 2.5), (None, NAN)])
def test_error_of_a_nonfinite_step_has_its_loss_and_the_parameters(loss, shown):
    norms = GradNorm(torch.tensor(NAN), torch.tensor([1.0, NAN, math.inf]), ["a", "b", "c"])
    result = StepResult(3, 0, 0.1, 4, 4, 4, Progress(), StepOutcome(False), norms, None, [])
    plan = SimpleNamespace(on_nonfinite="raise")
    error = nonfinite_error(result, loss, plan)
    assert (error.step, error.parameters) == (3, ["b", "c"])
    assert error.loss == pytest.approx(shown, nan_ok=True)


@pytest.mark.parametrize(
    ("position", "end", "positions"),
    [(8, 16, (8, 16)), (0, 16, None), (8, 8, None)],
    ids=["of the data", "of another position", "of train_step()"],
)
@pytest.mark.parametrize(
    ("outcome", "after_spike", "reason"),
    [
        (StepOutcome(False, overflow=True), False, "overflow"),
        (StepOutcome(False, nonfinite=True), False, "nonfinite"),
        (StepOutcome(False), False, "no_items"),
        (StepOutcome(False), True, "spike"),
    ],
)
def test_skipped_step_has_its_reason_and_the_positions_of_its_batch(
    position, end, positions, outcome, after_spike, reason
):
    batch = Batch((), 0.0, 0, 2, position, end, ends_epoch=False, after_spike=after_spike)
    before = Progress(step=6, epoch=2, position=8)
    result = StepResult(7, 2, 0.1, 4, 4, 4, before, outcome, None, None, [])
    assert skipped_step(result, batch) == SkippedStep(7, 2, positions, reason)
