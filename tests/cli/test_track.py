"""`surestep track replay`."""

import json
from importlib import util

import pytest

import surestep as package
from surestep import tracking
from surestep.record.io import write_json
from surestep.tracking import follower, registry
from surestep.tracking.tracker import Tracker
from tests import tiny
from tests.cli.conftest import RECIPE


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


OWN = """

class Lines(surestep.Tracker):
    name = "lines"

    def log(self, points):
        if Path("away").exists():
            raise OSError("the server is away")
        with open("lines", "a") as file:
            file.writelines(f"{point.step}\\n" for point in points if "lr" in point.values)


trackers = [Lines()]
"""


def lines(folder):
    return [int(line) for line in (folder / "lines").read_text().splitlines()]


@pytest.fixture
def tracked(surestep, recipe, folder, monkeypatch):
    """A recipe whose own tracker is away while it trains, and what a run of it printed."""
    monkeypatch.setattr(follower, "STALLED_S", 0.1)
    path = recipe("from pathlib import Path\n" + RECIPE + OWN)
    (folder / "away").touch()

    def train(run):
        answer = surestep("train", path, "--run", run, "--logging.every", "1 step")
        assert answer.code == 0, answer.err
        return answer.err

    return train


def test_command_that_a_run_prints_sends_the_rest_to_a_tracker_of_its_recipe(
    surestep, tracked, folder
):
    printed = tracked("r")
    (folder / "away").unlink()
    command = printed.split("To send the rest: surestep ")[1].split("\n")[0]
    answer = surestep(*command.split())
    assert answer.code == 0, answer.err
    assert lines(folder) == [1, 2, 3, 4, 5, 6]
    assert surestep(*command.split()).out == "lines has everything.\n"
    answer = surestep("track", "replay", "r", "--to", "line")
    assert "Did you mean 'lines'?" in answer.err


def test_trials_of_a_study_are_sent_in_one_command(surestep, tracked, folder):
    for name in ("trials/0000", "trials/0001", "confirm/0001-1"):
        tracked(f"study/{name}")
    write_json(folder / "study" / "study.json", {})
    (folder / "away").unlink()
    answer = surestep("track", "replay", "study", "--to", "lines")
    assert answer.code == 0, answer.err
    assert lines(folder) == [1, 2, 3, 4, 5, 6] * 3
    assert answer.out.count("lines got ") == 3
    answer = surestep("track", "replay", "study", "--to", "lines")
    assert answer.out.count("lines has everything of study/") == 3


def test_tracker_gets_all_parameters_of_the_recipe(surestep, recipe, monkeypatch):
    found = {}

    class Options(Tracker):
        name = "tensorboard"

        def start(self, run):
            found.update(run.options)

    text = RECIPE.replace("bias: bool = True", "bias: bool = True, then=nn.ReLU")
    words = ("--run", "r", "--max-steps", "4", "--task.hidden", "16")
    assert surestep("train", recipe(text), *words).code == 0
    monkeypatch.setattr(registry, "tracker_class", lambda name: Options)
    assert surestep("track", "replay", "r", "--to", "tensorboard").code == 0
    of_task = {name: value for name, value in found.items() if name.startswith("task.")}
    assert of_task == {
        **{"task.hidden": 16, "task.act": "tanh", "task.bias": True, "task.depth": 1},
        "task.then": "torch.nn.modules.activation.ReLU",
    }


class Away(Tracker):
    """A tracker of a script, which is away."""

    name = "lines"

    def start(self, run):
        raise OSError("the server is away")


def test_tracker_of_a_script_is_named_with_what_sends_the_rest(surestep, folder, monkeypatch):
    monkeypatch.setattr(follower, "STALLED_S", 0.1)
    package.Trainer(tiny.task(), tiny.config(), run=folder / "r", trackers=[Away()]).fit()
    answer = surestep("track", "replay", "r", "--to", "lines")
    assert answer.code == 2
    assert "replay_run('r', tracker)" in answer.err

    class Points(Tracker):
        name = "lines"
        steps = ()

        def log(self, points):
            self.steps = (*self.steps, *(point.step for point in points))

    points = Points()
    assert tracking.replay_run("r", points) > 0
    assert points.steps
    assert tracking.replay_run("r", Points()) == 0
