"""Two runs that differ in one bit or one event are not equal."""

import json

import pytest
import torch

from tests.torture.outcome import differences, digest, events_of


def steps(first, *losses):
    rates = [0.1] * len(losses)
    event = {"event": "steps", "first": first, "loss": losses, "grad_norm": losses, "lr": rates}
    return json.dumps(event)


def event(kind, step, **more):
    return json.dumps({"event": kind, "step": step, **more})


def test_a_bit_changes_the_digest():
    zeros = torch.zeros(3)
    assert digest(zeros) == digest(torch.zeros(3))
    assert digest(zeros) != digest(torch.tensor([0.0, -0.0, 0.0]))
    assert digest(zeros) != digest(torch.zeros(3, dtype=torch.int32))
    assert digest(zeros) != digest(torch.zeros(3, 1))


def test_differences_are_named():
    assert differences({"a": {"b": 1.0}}, {"a": {"b": 1.0}}) == []
    assert differences({"a": {"b": 1.0}, "c": 2}, {"a": {"b": 1.5}}) == [
        "/a/b: 1.0 and 1.5",
        "/c: 2 and 'nothing'",
    ]


def test_steps_undone_by_a_resume_count_once():
    whole = events_of([steps(1, 0.5, 0.4, 0.3)])
    assert events_of([steps(1, 0.5, 0.4), event("resume", 1), steps(2, 0.4, 0.3)]) == whole
    assert events_of([steps(1, 0.5), event("restart", 0), steps(1, 0.5, 0.4, 0.3)]) == whole


def test_repeated_steps_must_be_equal():
    with pytest.raises(AssertionError, match="step 2"):
        events_of([steps(1, 0.5, 0.4), event("resume", 1), steps(2, 0.41, 0.3)])


def test_step_or_evaluation_reported_twice_is_detected():
    with pytest.raises(AssertionError, match="reported twice"):
        events_of([steps(1, 0.5, 0.4), steps(2, 0.4)])
    measured = event("evaluation", 1, metrics={"val/loss": 0.5})
    with pytest.raises(AssertionError, match="reported twice"):
        events_of([steps(1, 0.5), measured, measured])
    assert events_of([measured, event("resume", 0), measured])["evaluations"][1]
