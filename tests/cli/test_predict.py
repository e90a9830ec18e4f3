import csv
import json

import numpy as np
import pytest
import torch

from surestep.record.run import Run
from tests import tiny
from tests.cli.conftest import RECIPE, STREAM, files

DROPPING = RECIPE.replace("acts[act](),", "acts[act](), nn.Dropout(0.3),")


@pytest.fixture
def run(surestep, recipe, folder, once):
    words = ("--run", "r", "--validation.metric", "loss", "--validation.mode", "max")

    def train():
        assert surestep("train", recipe(), *words).code == 0

    once(train)
    return Run(folder / "r")


def data():
    names = {}
    exec(compile(RECIPE, "mine.py", "exec"), names)
    return names["x"], names["y"].numpy()


def expected(run, which="best", rows=slice(32, None)):
    net = tiny.nn.Sequential(tiny.nn.Linear(4, 8), tiny.nn.Tanh(), tiny.nn.Linear(8, 3))
    run.load_model(net, which)
    with torch.no_grad():
        return net(data()[0][rows]).numpy()


def test_best_checkpoint_predicts_the_test_data_into_the_run_folder(surestep, run, folder):
    answer = surestep("predict", "r")
    assert (answer.code, answer.out) == (0, "r/predictions-test.npz\n")
    step = run.best.step
    said = f"best checkpoint, step {step}: 8 samples of test\n"
    assert answer.err == f"Running {folder / 'mine.py'}\n{said}"
    found = np.load(folder / "r/predictions-test.npz", allow_pickle=False)
    np.testing.assert_allclose(found["output"], expected(run), rtol=1e-5, atol=1e-6)
    assert (found["target"] == data()[1][32:]).all()
    assert (found["prediction"] == expected(run).argmax(1)).all()


@pytest.mark.parametrize(("part", "rows"), [("val", slice(24, 32)), ("train", slice(24))])
@pytest.mark.parametrize("which", ["best", "last"])
def test_split_and_checkpoint_to_predict_can_be_chosen(surestep, run, folder, part, rows, which):
    words = ("--split", part, "--which", which, "--out", "p.jsonl", "--json")
    said = json.loads(surestep("predict", "r", *words).out)
    lines = [json.loads(line) for line in (folder / "p.jsonl").read_text().splitlines()]
    found = [line["output"] for line in lines]
    np.testing.assert_allclose(found, expected(run, which, rows), rtol=1e-5, atol=1e-6)
    samples = len(data()[1][rows])
    assert said == {
        "path": "p.jsonl",
        "samples": samples,
        "arrays": {
            "index": [samples],
            "output": [samples, 3],
            "prediction": [samples],
            "target": [samples],
        },
        "step": getattr(run, which).step,
        "checkpoint": f"r/checkpoints/{getattr(run, which).path.name}",
        "notices": [],
    }


def test_predictions_with_mc_dropout_can_be_written_as_csv(surestep, recipe, folder):
    assert surestep("train", recipe(DROPPING), "--run", "r").code == 0
    answer = surestep("predict", "r", "--out", "p.csv", "--mc-dropout", "5")
    assert (answer.code, answer.out) == (0, "p.csv\n")
    assert ": 8 samples of test, 5 passes\n" in answer.err
    rows = list(csv.DictReader((folder / "p.csv").read_text().splitlines()))
    names = [f"{kind}_{number}" for kind in ("output", "spread", "probability") for number in "012"]
    assert list(rows[0]) == ["index", *names, "prediction", "entropy", "target"]
    assert all(float(row["spread_0"]) > 0 for row in rows)
    assert [int(row["target"]) for row in rows] == data()[1][32:].tolist()


def test_stream_is_predicted_in_its_order(surestep, recipe, folder):
    text = STREAM.replace("test=(x[32:], y[32:])", "test=lambda: zip(x[32:], y[32:])")
    assert surestep("train", recipe(text), "--run", "r").code == 0
    assert surestep("predict", "r").code == 0
    found = np.load(folder / "r/predictions-test.npz")
    assert (found["target"] == data()[1][32:]).all()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["r", "--split", "tset"], 2, "The task has no tset data. Did you mean 'test'?"),
        (["r", "--which", "newest"], 2, "Expected one of ('best', 'last', 'average')"),
        (["r", "--which", "average"], 1, "has no averaged weights"),
        (["r", "--mc-dropout", "5"], 1, "Sequential has no dropout"),
        (["r", "--mc-dropout", "1"], 2, "with 1 passes has no spread. Use 2 or more"),
        (["r", "--out", "p.xlsx"], 2, "'.xlsx' is not one"),
        (["r", "--out", "no/p.csv"], 2, "There is no folder no"),
        (["r", "--out", "mine.py"], 2, "'.py' is not one"),
        (["nowhere"], 1, "There is no run folder nowhere. Check the path."),
        ([], 2, "Run folder, or RUN@200"),
    ],
)
def test_usage_error_is_rejected_and_leaves_no_file(surestep, run, folder, words, code, message):
    before = files(folder)
    answer = surestep("predict", *words)
    assert (answer.code, answer.out) == (code, "")
    assert message in " ".join(answer.err.split())
    assert files(folder) == before


def test_existing_file_is_rejected_first_unless_overwrite_is_set(surestep, run, folder):
    (folder / "p.npz").write_text("mine")
    answer = surestep("predict", "r", "--out", "p.npz")
    assert answer.code == 2
    assert answer.err.startswith("ConfigError: p.npz exists. Set --overwrite")
    assert surestep("predict", "r", "--out", "p.npz", "--overwrite").code == 0
    assert len(np.load(folder / "p.npz")["index"]) == 8


def test_changed_recipe_is_not_run_unless_allowed(surestep, run, recipe, folder):
    recipe("print('running')\n" + RECIPE)
    answer = surestep("predict", "r")
    assert (answer.code, answer.out) == (2, "")
    assert f"{folder / 'mine.py'} has changed since r was trained." in answer.err
    assert surestep("predict", "r", "--allow", "recipe").code == 0


NO_TEST = RECIPE.replace("        test=(x[32:], y[32:]),\n", "")
VAL = "val=(x[24:32], y[24:32])"


def test_validation_data_is_predicted_if_there_is_no_test_data(surestep, recipe, folder):
    assert surestep("train", recipe(NO_TEST), "--run", "r").code == 0
    answer = surestep("predict", "r")
    assert (answer.code, answer.out) == (0, "r/predictions-val.npz\n")
    assert "The task has no test data, so val is predicted.\n" in answer.err
    found = np.load(folder / "r/predictions-val.npz")
    np.testing.assert_allclose(
        found["output"], expected(Run(folder / "r"), rows=slice(24, 32)), rtol=1e-5, atol=1e-6
    )
    assert surestep("predict", "r").code == 2
    assert surestep("predict", "r", "--split", "test").code == 2


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("val={'near': (x, y), 'far': (x, y)}", "Pass --split near or --split far."),
        ("val=None", "Pass --split train"),
    ],
)
def test_split_to_predict_is_asked_for_if_it_is_not_clear(surestep, recipe, folder, sets, message):
    assert surestep("train", recipe(NO_TEST.replace(VAL, sets)), "--run", "r").code == 0
    before = files(folder)
    answer = surestep("predict", "r")
    assert (answer.code, answer.out) == (2, "")
    assert "has no test data" in answer.err
    assert message in answer.err
    assert files(folder) == before
