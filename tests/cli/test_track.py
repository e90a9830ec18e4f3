"""`surestep track replay`."""

import json
from importlib import util

import pytest

from surestep.tracking import registry
from surestep.tracking.tracker import Tracker


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_missing_package_is_named_with_the_command_that_installs_it(
    surestep, recipe, monkeypatch, tracker
):
    find_spec = util.find_spec
    monkeypatch.setattr(
        registry, "find_spec", lambda name: None if name == tracker else find_spec(name)
    )
    assert surestep("train", recipe(), "--run", "r", "--max-steps", "4").code == 0
    answer = surestep("track", "replay", "r", "--to", tracker)
    assert answer.code != 0
    assert f"Install it: pip install {tracker}." in answer.err


@pytest.mark.parametrize("name", ["mlfow", "mlflow,wandb", ""])
def test_unknown_tracker_is_named_as_it_was_typed(surestep, name):
    answer = surestep("track", "replay", "r", "--to", name)
    assert answer.code != 0
    assert f"--to {name}: there is no such tracker." in answer.err
    assert "Known: tensorboard, mlflow, wandb" in answer.err


def test_value_of_the_short_form_is_rejected_under_the_name_that_was_typed(surestep, recipe):
    answer = surestep("train", recipe(), "--track", "tensorbord", "--dry-run")
    assert "--track: " in answer.err
    assert "--logging.trackers" not in answer.err
    assert "Did you mean 'tensorboard'?" in answer.err


def test_tracker_of_the_short_form_is_planned_as_set_on_the_command_line(surestep, recipe):
    answer = surestep("plan", recipe(), "--track", "tensorboard", "--json")
    assert answer.code == 0, answer.err
    entries = {entry["option"]: entry for entry in json.loads(answer.out)["decisions"]}
    assert entries["logging.trackers"]["reason"] == "set on the command line"


def test_error_of_a_library_is_one_line_without_secrets(surestep, recipe, monkeypatch):
    class Broken(Tracker):
        name = "tensorboard"

        def start(self, run):
            raise OSError("no answer of http://me:pass@host.\nSELECT *\nFROM runs")

    assert surestep("train", recipe(), "--run", "r", "--max-steps", "4").code == 0
    monkeypatch.setattr(registry, "tracker_class", lambda name: Broken)
    answer = surestep("track", "replay", "r", "--to", "tensorboard")
    assert answer.err.splitlines() == [
        "RunError: tensorboard failed at byte 0 of r/events.jsonl: OSError: no answer of "
        "http://***@host."
    ]
