import json
from pathlib import Path

import pytest

from surestep.record.run import Run
from tests.cli.conftest import RECIPE

STOPPING = (
    RECIPE
    + """
import os
class Once(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 4 and not os.path.exists("stopped"):
            open("stopped", "w").close()
            raise KeyboardInterrupt

callbacks = [Once()]
"""
)


@pytest.fixture
def stopped(surestep, recipe, once):
    def train():
        words = ("--run", "r", "--task.hidden", "5")
        assert surestep("train", recipe(STOPPING), *words).code == 130

    once(train)


def test_run_is_resumed_with_the_recipe_it_names(surestep, stopped, folder):
    answer = surestep("resume", "r")
    assert answer.code == 0
    assert f"Running {folder / 'mine.py'}" in answer.err
    assert "Resuming r from step 3" in answer.err
    assert Run(folder / "r").status["status"] == "finished"
    assert surestep("train", "mine.py", "--run", "whole", "--task.hidden", "5").code == 0
    assert Run(folder / "r").last.metrics == Run(folder / "whole").last.metrics


def test_finished_run_is_reported(surestep, recipe):
    surestep("train", recipe(), "--run", "r")
    answer = surestep("resume", "r", "--json")
    assert answer.code == 0
    assert "r is finished: 6 steps are done." in answer.err
    assert json.loads(answer.out)["run"] == "r"


@pytest.mark.parametrize(("ranks", "is_printed"), [(3, True), (1, False), (None, False)])
def test_resume_in_one_process_says_how_to_start_as_many(
    surestep, stopped, folder, ranks, is_printed
):
    config = json.loads((folder / "r/config.json").read_text())
    config["decided"]["parallel.ranks"] = ranks
    (folder / "r/config.json").write_text(json.dumps(config))
    answer = surestep("resume", "r")
    sentence = "r was trained by 3 processes and resumes in one. To resume with 3, add --nproc 3.\n"
    assert (sentence in answer.err) == is_printed
    assert answer.code == 0


def test_changed_recipe_is_not_run_unless_allowed(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    recipe("print('running')\n" + RECIPE)
    answer = surestep("resume", "r")
    assert (answer.code, answer.out) == (2, "")
    assert (
        f"{folder / 'mine.py'} has changed since r was trained. Pass --allow recipe" in answer.err
    )
    told = surestep("resume", "r", "--allow", "recipe", "--json")
    assert told.code == 0
    assert "running" in told.err


def test_option_of_resume_is_rejected_with_what_to_type(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    answer = surestep("resume", "r", "--nproc", "2", "--data.num-workers", "0")
    assert (answer.code, answer.out) == (2, "")
    assert "surestep resume does not take --data.num-workers 0: it resumes a run with" in answer.err
    instead = f"surestep train {folder / 'mine.py'} --run r --data.num-workers 0"
    assert answer.err.endswith(f"and the new ones: {instead}\n")
    assert surestep(*instead.split()[1:]).code == 0


def test_folder_that_is_not_a_run_is_rejected(surestep, folder):
    answer = surestep("resume", "nowhere")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("RunError: There is no run folder nowhere.")


def test_advice_for_the_working_directory_can_be_typed(surestep, recipe, folder, monkeypatch):
    """After ".", a full stop would make it another folder."""
    surestep("train", recipe(), "--run", "r")
    path = json.loads((folder / "r/config.json").read_text())["recipe"]["path"]
    Path(path).rename(f"{path}.old")
    monkeypatch.chdir(folder / "r")
    assert surestep("resume", ".").err.endswith(": surestep train RECIPE --run .\n")


@pytest.mark.parametrize("content", [None, ""], ids=["missing", "empty"])
def test_lost_status_is_rejected_with_what_to_type(surestep, recipe, folder, content):
    surestep("train", recipe(), "--run", "r")
    status = folder / "r/status.json"
    status.unlink() if content is None else status.write_text(content)
    answer = surestep("resume", "r")
    assert answer.code == 1
    assert ("is missing" if content is None else "it is empty.") in answer.err
    instead = "surestep train RECIPE --from r@last --run NEW"
    assert answer.err.endswith(f"start a new run from its newest checkpoint: {instead}\n")
    words = instead.replace("RECIPE", "mine.py").split()[1:]
    assert surestep(*words, "--epochs", "3").code == 0


def test_lost_config_is_rejected_with_what_to_type(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    (folder / "r/config.json").write_text("")
    assert "cannot be read: it is empty. Put a copy of it back" in surestep("resume", "r").err
    (folder / "r/config.json").unlink()
    assert "put a copy of that file back" in surestep("resume", "r").err


def test_train_resumes_with_the_allowed_changes(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    words = ("train", "mine.py", "--run", "r", "--epochs", "3", "--optim.lr", "0.5")
    refused = surestep(*words)
    assert refused.code == 1
    assert "\n epochs 2 epochs, 6 steps -> 3 epochs, 9 steps safe: so far" in refused.err
    assert "--allow optim.lr (" in refused.err
    assert surestep(*words, "--allow", "optim.lr").code == 0
    assert Run(folder / "r").last.step == 9
    assert surestep(*words, "--allow", "optim.lr").code == 0  # the same command again: finished


def test_train_forks_a_different_run(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    words = ("train", "mine.py", "--run", "new", "--from", "r@3", "--optim.lr", "0.5")
    answer = surestep(*words)
    assert answer.code == 0
    assert "new starts from step 3 of r." in answer.err
    assert "optim.lr 0.01 -> 0.5 allowed: " in answer.err
    assert Run(folder / "new").config["from"]["step"] == 3
    missing = surestep("train", "mine.py", "--run", "other", "--from", "r@5")
    assert missing.code == 1
    assert not (folder / "other").exists()


def test_dry_run_with_a_run_to_fork_is_rejected(surestep, recipe):
    answer = surestep("train", recipe(), "--dry-run", "--from", "r@3")
    assert answer.code == 2
    assert (
        "leave out --run, --resume, --allow, --from, --notify, --report and --animate" in answer.err
    )


@pytest.mark.parametrize("command", ["resume", "evaluate"])
@pytest.mark.parametrize(("name", "value"), [("optim.lrr", 0.1), ("optim.lr", "much")])
def test_damaged_option_is_reported_with_its_file(surestep, recipe, folder, command, name, value):
    surestep("train", recipe(), "--run", "r")
    path = folder / "r" / "config.json"
    found = json.loads(path.read_text())
    found["config"][name] = value
    path.write_text(json.dumps(found))
    answer = surestep(command, "r")
    assert answer.code == 2
    assert f"r/config.json: There is no option {name!r}" in answer.err or (
        f"r/config.json: {name}={value!r} is not allowed" in answer.err
    )
