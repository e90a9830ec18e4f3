"""Two runs that differ in one bit, or tell one thing otherwise, are not the same."""

import json

import pytest
import torch

from tests.torture.outcome import differences, digest, told


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


def test_what_a_resume_cut_off_counts_once():
    whole = told([steps(1, 0.5, 0.4, 0.3)])
    assert told([steps(1, 0.5, 0.4), event("resume", 1), steps(2, 0.4, 0.3)]) == whole
    assert told([steps(1, 0.5), event("restart", 0), steps(1, 0.5, 0.4, 0.3)]) == whole


def test_what_was_done_again_must_be_the_same():
    with pytest.raises(AssertionError, match="step 2"):
        told([steps(1, 0.5, 0.4), event("resume", 1), steps(2, 0.41, 0.3)])


def test_a_step_or_an_evaluation_told_twice_is_found():
    with pytest.raises(AssertionError, match="told twice"):
        told([steps(1, 0.5, 0.4), steps(2, 0.4)])
    measured = event("evaluation", 1, metrics={"val/loss": 0.5})
    with pytest.raises(AssertionError, match="told twice"):
        told([steps(1, 0.5), measured, measured])
    assert told([measured, event("resume", 0), measured])["evaluations"][1]
