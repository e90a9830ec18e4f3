"""`surestep replay INCIDENT` replays the step that stopped a run."""

import json
from pathlib import Path

import pytest

from surestep.record.io import read_json, write_json
from tests.cli.conftest import BAD


@pytest.fixture
def incident(surestep, recipe, folder):
    """Train until a sample stops the run; return the incident that the error names."""
    answer = surestep("train", recipe(BAD), "--run", "r", "--data.shuffle", "False")
    assert answer.code == 1
    assert "Sample 20 (position 20) caused it" in answer.err
    typed = answer.err.partition("Replay the step with: ")[2].splitlines()[0]
    return typed.removeprefix("surestep replay ")


def test_step_is_replayed_bitwise_identically(surestep, incident):
    answer = surestep("replay", incident)
    assert answer.code == 0
    assert "are bitwise identical" in answer.out
    assert "Sample 20 (position 20) caused it: it is not finite alone." in " ".join(
        answer.out.split()
    )


@pytest.mark.parametrize("up", [0, 1])
def test_step_is_replayed_from_inside_its_folder(surestep, incident, monkeypatch, up):
    path = Path(incident)
    monkeypatch.chdir([path, path.parent][up])
    answer = surestep("replay", [".", path.name][up])
    assert answer.code == 0
    assert "are bitwise identical" in answer.out


def test_gradient_norms_missing_on_ranks_are_not_compared(surestep, incident):
    record = Path(incident) / "incident.json"
    write_json(record, {**read_json(record), "norms": []})
    answer = surestep("replay", incident)
    assert "Loss and gradient norms are bitwise identical to the run's." in answer.out


def test_step_replayed_without_its_bad_sample_is_finite(surestep, incident):
    answer = surestep("replay", incident, "--without", "20", "--json")
    found = json.loads(answer.out)
    assert found["now"]["finite"]
    assert not found["recorded"]["finite"]
    assert found["recorded"]["samples"] == [20]
    assert found["changes"] == ["without 20"]
    shown = surestep("replay", incident, "--without", "20").out
    assert "Not bitwise identical" in shown
    assert "It is finite." in shown


def test_step_can_be_replayed_in_a_different_precision(surestep, incident):
    answer = surestep("replay", incident, "--precision", "bf16")
    assert answer.code == 0
    assert "precision bf16" in answer.out
    assert "Not bitwise identical: the loss, the norm or the outputs of modules." in answer.out


def test_replay_is_reported_as_inconclusive_if_all_records_are_nan(surestep, incident):
    record = Path(incident) / "incident.json"
    known = read_json(record)
    del known["diagnosis"]["outputs"]  # as an older version wrote it
    write_json(record, known)
    assert "so the steps cannot be compared" in surestep("replay", incident).out


def test_damaged_option_of_an_incident_is_reported_with_its_file(surestep, incident):
    record = Path(incident) / "incident.json"
    found = read_json(record)
    found["run_config"]["config"]["optim.lrr"] = 0.1
    write_json(record, found)
    answer = surestep("replay", incident)
    assert answer.code == 2
    assert f"{incident}/incident.json: There is no option 'optim.lrr'" in answer.err


def test_changed_recipe_is_replayed_only_if_allowed(surestep, recipe, incident):
    recipe(f"{BAD}\n")
    refused = surestep("replay", incident)
    assert refused.code == 2
    assert "Pass --allow recipe" in refused.err.replace("\n", " ")
    assert "are bitwise identical" in surestep("replay", incident, "--allow", "recipe").out


WRONG = {
    "missing folder": (["nowhere"], 1, "nowhere is not an incident: it has no incident.json"),
    "run folder": (["r"], 1, "Its incidents: r/incidents/step-00000003."),
    "text as index": (["--without", "x"], 2, "Pass indices of samples, such as --without"),
    "sample of a different batch": (["--without", "3"], 2, "Samples [3] are not in the batch"),
    "unknown precision": (["--precision", "fp13"], 2, "fp13"),
}


@pytest.mark.parametrize("name", WRONG)
def test_impossible_replay_is_rejected(surestep, incident, name):
    words, code, message = WRONG[name]
    answer = surestep("replay", *([] if words[0][0] not in "-" else [incident]), *words)
    assert answer.code == code
    assert message in answer.err.replace("\n", " ")


def test_replay_of_a_run_from_python_shows_the_python_call(surestep, tmp_path):
    from tests.trainer.test_replay import DIVIDES, failed

    error = failed(tmp_path / "run", DIVIDES, {})
    answer = surestep("replay", error.incident)
    assert answer.code == 1
    assert f"surestep.replay({error.incident!r}, task)" in answer.err
