"""`--animate` of `surestep report` and of `surestep train`."""

import pytest
from PIL import Image

from tests.reports.folders import log_point, write_run
from tests.reports.test_animate import POINTS, solid

RECIPE = """
import torch
from torch import nn
import surestep

config = surestep.Config(max_steps=4, batch_size=8, validation={"every": "2 steps"})
callbacks = [surestep.DecisionRegions(cells=8)]


def task() -> surestep.Task:
    x = torch.randn(24, 2)
    data = (x, (x[:, 0] > 0).long())
    return surestep.Task(nn.Linear(2, 2), nn.CrossEntropyLoss(), train=data, val=data)
"""


@pytest.fixture
def runs(folder):
    """A run with decision regions, and one without."""
    point = log_point(1, [1.0] * 4)
    write_run(folder / "runs" / "plain", [point])
    return write_run(folder / "runs" / "plane", [point, POINTS, solid(2, 0), solid(4, 1)])


def count_frames(path):
    with Image.open(path) as file:
        return file.n_frames


def test_report_writes_the_animation_and_no_page(runs, surestep, folder):
    answer = surestep("report", "runs/plane", "--animate", "plane.webp")
    assert (answer.code, answer.out.strip()) == (0, "plane.webp")
    assert count_frames(folder / "plane.webp") == 2
    assert list(folder.rglob("*.html")) == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["runs/plain", "--animate", "a.gif"], 1, "runs/plain has no decision regions to animate"),
        (["runs", "--animate", "a.gif"], 2, "--animate shows one run, and there are 2"),
        (["runs/plane", "--animate", "a.mp4"], 2, "'.mp4' is not one"),
        (["runs/plane", "--animate", "gone/a.gif"], 2, "There is no folder gone"),
        (["runs/plane", "--animate", "a.gif", "--json"], 2, "Leave --json out"),
        (["runs/plane", "--animate", "a.gif", "--redact"], 2, "Leave --redact out"),
        (["runs/plane", "--animate", "a.gif", "--out", "a.html"], 2, "Leave --out out"),
        (["runs/plane", "--animate", "a.gif", "--live"], 2, "Leave --animate out"),
    ],
)
def test_wrong_words_are_explained_and_nothing_is_written(
    runs, surestep, folder, words, code, message
):
    before = sorted(folder.rglob("*"))
    answer = surestep("report", *words)
    assert answer.code == code
    assert message in answer.err
    assert sorted(folder.rglob("*")) == before


def test_train_writes_the_animation_at_the_end(surestep, recipe, folder):
    words = ("train", recipe(RECIPE), "--run", "r", "--animate", "a.gif")
    answer = surestep(*words)
    assert answer.code == 0, answer.err
    assert "Animation: a.gif" in answer.out
    assert count_frames(folder / "a.gif") == 2
    assert not (folder / "r" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--animate", "a.mp4"], "'.mp4' is not one"),
        (["--animate", "gone/a.gif"], "There is no folder gone"),
        (["--animate", "a.gif", "--dry-run"], "--report and --animate"),
    ],
)
def test_wrong_words_of_train_are_explained_before_the_training(
    surestep, recipe, folder, words, message
):
    answer = surestep("train", recipe(RECIPE), "--run", "r", *words)
    assert answer.code == 2
    assert message in answer.err
    assert not (folder / "r").exists()


def test_recipe_without_regions_is_explained_before_the_training(surestep, recipe, folder):
    answer = surestep("train", recipe(), "--run", "r", "--animate", "a.gif")
    assert answer.code == 2
    assert "the recipe mine records no decision regions to animate" in answer.err
    assert "callbacks = [surestep.DecisionRegions()]" in answer.err
    assert not (folder / "r").exists()


def test_recipe_of_other_inputs_is_explained(surestep, recipe, folder):
    answer = surestep(
        "train", recipe(RECIPE.replace("24, 2)", "24, 4)").replace("(2, 2)", "(4, 2)"))
    )
    assert answer.code == 2
    assert "an input of this model is a tensor of shape (4,)" in answer.err
