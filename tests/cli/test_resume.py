import json

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
def stopped(surestep, recipe):
    assert surestep("train", recipe(STOPPING), "--run", "r", "--task.hidden", "5").code == 130


def test_a_run_goes_on_by_the_recipe_in_it(surestep, stopped, folder):
    answer = surestep("resume", "r")
    assert answer.code == 0
    assert f"Running {folder / 'mine.py'}" in answer.err
    assert "Going on in r from step 3" in answer.err
    assert Run(folder / "r").status["status"] == "finished"
    assert surestep("train", "mine.py", "--run", "whole", "--task.hidden", "5").code == 0
    assert Run(folder / "r").last.metrics == Run(folder / "whole").last.metrics


def test_a_finished_run_says_so(surestep, recipe):
    surestep("train", recipe(), "--run", "r")
    answer = surestep("resume", "r", "--json")
    assert answer.code == 0
    assert "r is finished: 6 steps are done." in answer.err
    assert json.loads(answer.out)["run"] == "r"


def test_a_recipe_that_changed_is_not_run_unless_told(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    recipe("print('running')\n" + RECIPE)
    answer = surestep("resume", "r")
    assert (answer.code, answer.out) == (2, "")
    assert f"{folder / 'mine.py'} has changed since r was trained. Say --allow recipe" in answer.err
    told = surestep("resume", "r", "--allow", "recipe", "--json")
    assert told.code == 0
    assert "running" in told.err


def test_what_is_no_run_is_refused(surestep, folder):
    answer = surestep("resume", "nowhere")
    assert (answer.code, answer.out) == (1, "")
    assert "nowhere is no run folder" in answer.err


def test_train_goes_on_with_what_is_allowed(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r")
    words = ("train", "mine.py", "--run", "r", "--epochs", "3", "--optim.lr", "0.5")
    refused = surestep(*words)
    assert refused.code == 1
    assert "\n epochs 2 epochs, 6 steps -> 3 epochs, 9 steps harmless: until here" in refused.err
    assert "--allow optim.lr (" in refused.err
    assert surestep(*words, "--allow", "optim.lr").code == 0
    assert Run(folder / "r").last.step == 9
    assert surestep(*words, "--allow", "optim.lr").code == 0  # the same command again: finished


def test_train_branches_off_another_run(surestep, recipe, folder):
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


def test_a_rehearsal_keeps_no_run_to_branch_from(surestep, recipe):
    answer = surestep("train", recipe(), "--dry-run", "--from", "r@3")
    assert answer.code == 2
    assert "leave out --run, --resume, --allow and --from" in answer.err
