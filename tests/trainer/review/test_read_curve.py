"""The curve of a run is read from its events; what a resumed run repeats counts once."""

from types import SimpleNamespace

import pytest

from surestep.trainer.review.read_curve import read_curve

LOSSES = {step: 1 / step for step in range(1, 31)}


def steps(first, last, scale=1.0):
    losses = [scale * LOSSES[step] for step in range(first, last + 1)]
    return {"event": "steps", "first": first, "loss": losses, "lr": [0.1 * scale] * len(losses)}


def evaluation(step, loss):
    return {
        "event": "evaluation",
        "step": step,
        "metrics": {"val/loss": loss},
        "measured": "weights",
    }


def read(tmp_path, *events):
    config, monitor = {"config": {}, "decided": {}}, ("val/loss", "min")
    parts = {"path": tmp_path, "config": config, "monitor": monitor}
    return read_curve(SimpleNamespace(events=lambda: iter(events), **parts))


@pytest.mark.parametrize("event", ["resume", "restart", "rollback"])
@pytest.mark.parametrize("step", [10, 13, 20])
def test_steps_after_the_one_that_a_run_resumes_from_are_read_again(tmp_path, event, step):
    """The first process logged up to step 20; the checkpoint may be within a log point."""
    before = (steps(1, 10), evaluation(10, 5.0), steps(11, 20), evaluation(13, 4.0))
    undone = (evaluation(20, 3.0),)
    resumed = ({"event": event, "step": step}, steps(step + 1, 30, 2.0), evaluation(30, 2.0))
    curve = read(tmp_path, *before, *undone, *resumed)
    assert curve.steps.tolist() == list(range(1, 31))
    factors = [1.0] * step + [2.0] * (30 - step)
    expected = [loss * factor for loss, factor in zip(LOSSES.values(), factors, strict=True)]
    assert curve.losses.tolist() == pytest.approx(expected)
    assert curve.rates.tolist() == pytest.approx([0.1 * factor for factor in factors])
    evaluated = {10: 5.0, 13: 4.0, 20: 3.0}
    kept = {at: loss for at, loss in evaluated.items() if at <= step} | {30: 2.0}
    assert curve.evaluations.steps.tolist() == list(kept)
    assert curve.evaluations.losses.tolist() == list(kept.values())


def test_steps_that_are_repeated_without_an_event_count_once(tmp_path):
    curve = read(tmp_path, steps(1, 10), steps(8, 12, 2.0))
    assert curve.steps.tolist() == list(range(1, 13))
    assert curve.losses[6:8].tolist() == pytest.approx([LOSSES[7], 2 * LOSSES[8]])


def test_steps_that_a_resumed_run_has_not_repeated_yet_are_left_out(tmp_path):
    curve = read(tmp_path, steps(1, 10), {"event": "resume", "step": 8})
    assert curve.steps.tolist() == list(range(1, 9))


def test_failed_step_is_forgotten_when_the_run_resumes(tmp_path):
    failed = (steps(1, 10), {"event": "incident", "step": 11})
    assert read(tmp_path, *failed).failed_at == 11
    assert read(tmp_path, *failed, {"event": "resume", "step": 8}).failed_at is None
