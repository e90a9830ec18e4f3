"""`surestep lr-find`, and optim.lr="find" on the command line."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from surestep.cli import lr_find
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.schedule.compare_rates import RateTraining
from surestep.record.run import Run
from surestep.trainer.find_lr import LrRangeTest, RangeCurve
from surestep.tuning.page import describe_page
from tests.forked import run_forked

RECIPE = """
import torch
from torch import nn
import surestep

x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
y = 5 + x.sum(1, keepdim=True)
config = surestep.Config(epochs=2, batch_size=16, optim={"name": "sgd"})


def task(scale: float = 1.0):
    return surestep.Task(lambda: nn.Linear(4, 1), loss=lambda a, b: scale * (a - b).square().mean(),
                         train=(x, y))
"""
# Its loss kills the process at the call whose number is in the file "die".
DYING = (
    RECIPE.replace('"name": "sgd"', '"name": "sgd", "lr": "find"').replace(
        "loss=lambda a, b: scale * (a - b).square().mean()", "loss=loss"
    )
    + """
import os
from pathlib import Path

calls = []


def loss(outputs, targets):
    calls.append(1)
    Path("calls").write_text(str(len(calls)))
    if Path("die").exists() and len(calls) == int(Path("die").read_text()):
        os.kill(os.getpid(), 9)
    return (outputs - targets).square().mean()
"""
)


def test_rate_is_drawn_printed_and_typed_next(surestep, recipe, folder):
    words = ("lr-find", recipe(RECIPE), "--batch-size", "8", "--optim.lr", "9")
    answer = surestep(*words, "--seeds", "2", "--steps", "100")
    assert answer.code == 0, answer.err
    assert answer.err.startswith(
        "Range tests with 2 seeds, of 100 steps each, then short trainings."
    )
    assert answer.err.count("Range test with seed") == 2
    assert answer.err.count("Training of 16 steps at a rate of ") >= 3
    lr = re.search(r"Suggestion: (\S+), ", answer.out)[1]
    assert f"Next: surestep train mine.py --batch-size 8 --optim.lr {lr}" in answer.out
    for text in ("loss over the learning rate", "seed 1: ", "0.0001", f"suggestion: {lr}"):
        assert text in answer.out
    assert "from the same weights" not in answer.out
    assert {path.name for path in folder.iterdir()} <= {"mine.py", "__pycache__"}


def test_short_trainings_are_listed_by_rising_rate(capsys):
    curve = RangeCurve([0.01, 0.1, 1.0], [2.0, 1.0, 3.0])
    trainings = (RateTraining(0.3, (1.5, float("inf"))), RateTraining(0.1, (2.25, 2.0)))
    found = LrRangeTest(
        *("sgd", "optim.lr", 0.05, (0.031, 0.2), "half the rate", (0, 1), (None, None)),
        *((curve, curve), trainings),
    )
    lr_find._print(found, ["mine.py"])
    printed = capsys.readouterr().out
    assert "Suggestion: 0.05, half the rate.\nEach seed alone suggests 0.031 to 0.2.\n" in printed
    rows = [re.findall(r"[\d.]+|diverged", line) for line in printed.splitlines() if "│ " in line]
    assert rows[-2:] == [["0.1", "2.25", "2"], ["0.3", "1.5", "diverged"]]
    assert "loss of seed 1" in printed


def test_json_has_the_curves(surestep, recipe, folder):
    answer = surestep("lr-find", recipe(RECIPE), "--seeds", "1", "--steps", "100", "--json")
    found = json.loads(answer.out)
    assert (found["option"], found["optimizer"], found["seeds"]) == ("optim.lr", "sgd", [0])
    (curve,) = found["curves"]
    assert len(curve["rates"]) == len(curve["losses"])
    assert {len(training["losses"]) for training in found["trainings"]} == {1}
    assert 0.2 < found["lr"] / found["trainings"][0]["lr"] < 100


def test_exit_code_is_1_if_the_curves_say_nothing(surestep, recipe):
    answer = surestep(
        "lr-find", recipe(RECIPE), "--seeds", "1", "--steps", "99", "--task.scale", "0"
    )
    assert answer.code == 1
    assert "The curves show no rate: the loss never falls" in answer.err
    assert "Next:" not in answer.out


def test_ctrl_c_is_exit_code_130(surestep, recipe, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("surestep.trainer.find_lr.measure_curve", interrupt)
    assert surestep("lr-find", recipe(RECIPE)).code == 130


def test_plan_says_find_and_does_not_search(surestep, recipe, monkeypatch):
    monkeypatch.setattr("surestep.trainer.find_lr.measure_curve", None)
    half = ("--optim.layerwise-lr-decay", "0.5")
    answer = surestep("plan", recipe(RECIPE), "--optim.lr", "find", *half)
    assert answer.code == 0, answer.err
    (row,) = [line for line in answer.out.splitlines() if "optim.lr " in line]
    assert re.search(r"find .*set on the command line: measured before step 1", row)
    assert "1 x find" not in answer.out


@pytest.mark.parametrize("in_recipe", [True, False])
def test_space_with_the_rate_beside_find_is_rejected(surestep, recipe, folder, in_recipe):
    (folder / "space.toml").write_text('optim.lr = "log(1e-4, 1e-1)"\n')
    text = RECIPE.replace('"name": "sgd"', '"name": "sgd", "lr": "find"') if in_recipe else RECIPE
    typed = () if in_recipe else ("--optim.lr", "find")
    answer = surestep("search", recipe(text), "--space", "space.toml", "--trials", "1", *typed)
    assert answer.code == 2
    assert "optim.lr is in the space, and it is set" in answer.err


@pytest.mark.slow("searches in processes")
def test_search_shows_and_uses_the_rate_that_a_trial_found(surestep, recipe, folder):
    (folder / "space.toml").write_text("batch_size = [8, 16]\n")
    text = RECIPE.replace("train=(x, y)", "train=(x, y), val=(x, y)")
    words = ("search", recipe(text), "--space", "space.toml", "--study", "s", "--trials", "2")
    answer = surestep(*words, "--optim.lr", "find", "--confirm", "1", "--confirm-seeds", "1")
    assert answer.code == 0, answer.err
    rates = [Run(run).config["lr_find"] for run in sorted((folder / "s" / "trials").glob("000?"))]
    for shown in (answer.out, surestep("search", "show", "s").out):
        lines = [line.replace(" *", "").split() for line in shown.splitlines()]
        (header,) = [words for words in lines if words[:2] == ["trial", "state"]]
        rows = [words for words in lines if words[1:2] == ["finished"]]
        assert [row[header.index("optim.lr")] for row in rows] == [f"{lr:.5g}" for lr in rates]
    result = json.loads((folder / "s" / "result.json").read_text())
    rate = rates[result["winner"]["number"]]
    best = tomllib.loads((folder / "s" / "best.toml").read_text())
    assert best["optim"]["lr"] == rate
    (again,) = (folder / "s" / "confirm").glob("000?-*/")
    assert Run(again).config["config"]["optim.lr"] == rate
    assert "lr_find" not in Run(again).config
    page = describe_page(json.loads((folder / "s" / "report.json").read_text()))
    assert page["others"] == ["optim.lr"]
    assert [trial["measured"] for trial in page["trials"]] == [[lr] for lr in rates]


def lines_of(run):
    """Return the steps that a run recorded, and its rate."""
    losses = [loss for event in Run(run).events() for loss in event.get("loss", ())]
    return Run(run).config["config"]["optim.lr"], losses[-4:]


@pytest.mark.slow("trains in four processes")
def test_run_that_is_killed_in_the_search_measures_again_and_later_it_does_not(recipe, folder):
    saves = ("--checkpoint.every", "4 steps", "--checkpoint.async-save", "False")
    words = ("train", recipe(DYING), *saves, "--run")
    done = run_forked(folder, *words, "whole")
    assert done.returncode == 0
    assert ", found by a range test and short trainings: " in done.stdout + done.stderr
    expected, calls = lines_of(folder / "whole"), int((folder / "calls").read_text())
    (folder / "die").write_text("150")
    assert run_forked(folder, *words, "r").returncode == -9
    assert not (folder / "r" / "config.json").exists()
    (folder / "die").write_text(str(calls - 1))
    killed = run_forked(folder, *words, "r")
    assert killed.returncode == -9
    assert "Range test with seed 0" in killed.stderr
    (folder / "die").unlink()
    resumed = run_forked(folder, *words, "r")
    assert resumed.returncode == 0
    assert "Range test" not in resumed.stderr + resumed.stdout
    assert "Resuming r from step 4" in resumed.stdout + resumed.stderr
    assert lines_of(folder / "r") == expected
    weights = [Run(folder / name).choose("last").opened.tensors("model") for name in ("r", "whole")]
    assert [value.tolist() for value in weights[0].values()] == [
        value.tolist() for value in weights[1].values()
    ]


@pytest.mark.slow("matplotlib takes a second to import")
def test_curves_are_plotted_to_a_file(tmp_path):
    pytest.importorskip("matplotlib")
    from surestep.cli.lr_chart import plot_curves

    curves = (RangeCurve((0.1, 1.0, 10.0), (2.0, 1.0, float("nan"))),)
    found = LrRangeTest("sgd", "optim.lr", 0.5, (0.5, 0.5), "", (0,), (0.5,), curves)
    plot_curves(found, Path(tmp_path) / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_other_ranks_print_nothing(surestep, recipe, monkeypatch):
    rank = LaunchInfo(rank=1, size=2)
    monkeypatch.setattr("surestep.cli.lr_find.read_launched", lambda: rank)
    words = ("--seeds", "1", "--steps", "20", "--highest", "1e-6")
    answer = surestep("lr-find", recipe(RECIPE), *words)
    assert (answer.code, answer.out, answer.err) == (1, "", "")
