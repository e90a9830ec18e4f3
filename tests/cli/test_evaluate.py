import json
import shutil

import pytest

import surestep as package
from surestep.record.run import Run
from tests import tiny
from tests.cli.conftest import RECIPE


@pytest.fixture
def run(surestep, recipe, folder, once):
    """A run whose best checkpoint is not its last."""
    words = ("--run", "r", "--validation.metric", "loss", "--validation.mode", "max")

    def train():
        assert surestep("train", recipe(), *words).code == 0

    once(train)
    run = Run(folder / "r")
    assert run.best.step < run.last.step
    return run


def test_best_checkpoint_is_evaluated_on_the_validation_data(surestep, run, folder):
    answer = surestep("evaluate", "r")
    assert answer.code == 0
    assert f"r, best checkpoint, step {run.best.step}\n" in answer.out
    assert f" val/loss {run.best.metrics['val/loss']:.4g} " in answer.out
    assert f" val/accuracy {run.best.metrics['val/accuracy']:.4g} " in answer.out
    assert answer.out.endswith("Measured: 8 samples of val\n")
    assert answer.err == f"Running {folder / 'mine.py'}\n"


@pytest.mark.parametrize("which", ["best", "last"])
def test_best_and_last_checkpoint_can_be_evaluated(surestep, run, which):
    found = json.loads(surestep("evaluate", "r", "--which", which, "--json").out)
    saved = getattr(run, which)
    assert found["step"] == saved.step
    assert found["path"] == f"r/checkpoints/{saved.path.name}"
    assert found["metrics"] == pytest.approx(saved.metrics)
    assert found["samples"] == {"val": 8}


def test_checkpoint_can_be_named_by_its_step(surestep, run):
    answer = surestep("evaluate", f"r@{run.last.step}")
    assert f"r, step {run.last.step}\n" in answer.out
    assert f" val/loss {run.last.metrics['val/loss']:.4g} " in answer.out
    assert json.loads(surestep("evaluate", "r@last", "--json").out)["step"] == run.last.step


def test_two_different_names_for_the_checkpoint_are_rejected(surestep, run):
    answer = surestep("evaluate", "r@3", "--which", "last")
    assert (answer.code, answer.out) == (2, "")
    assert "r@3 and --which last name different checkpoints" in answer.err


def test_other_split_gives_the_metrics_of_the_end_of_training(surestep, run):
    measured = [each for each in run.events() if each["event"] == "evaluation"][-1]
    found = json.loads(surestep("evaluate", "r", "--split", "test", "--json").out)
    assert found["metrics"] == measured["metrics"]


def test_every_sample_of_the_training_data_is_evaluated(surestep, run):
    x, y = package_data()
    model = tiny.nn.Sequential(tiny.nn.Linear(4, 8), tiny.nn.Tanh(), tiny.nn.Linear(8, 3))
    run.load_model(model)
    expected = float(tiny.nn.functional.cross_entropy(model(x), y).detach())
    found = json.loads(surestep("evaluate", "r", "--split", "train", "--json").out)
    assert found["metrics"]["train/loss"] == pytest.approx(expected, rel=1e-5)


def package_data():
    names = {}
    exec(compile(RECIPE, "mine.py", "exec"), names)
    return names["x"][:24], names["y"][:24]


def test_evaluation_writes_no_file(surestep, run, folder):
    before = {path: path.stat().st_mtime_ns for path in (folder / "r").rglob("*")}
    surestep("evaluate", "r", "--split", "test")
    assert {path: path.stat().st_mtime_ns for path in (folder / "r").rglob("*")} == before


def test_evaluation_uses_the_options_typed_for_training(surestep, recipe, folder):
    surestep("train", recipe(), "--run", "r", "--task.hidden", "17", "--seed", "4")
    answer = surestep("evaluate", "r")
    assert (answer.code, answer.err) == (0, f"Running {folder / 'mine.py'}\n")


def test_shipped_recipe_is_found_again(surestep, folder):
    words = ("--run", "r", "--max-steps", "2", "--schedule.warmup", "0%", "--task.hidden", "4")
    assert surestep("train", "spiral", *words, "--validation.every", "2 steps").code == 0
    answer = surestep("evaluate", "r", "--split", "test")
    assert answer.code == 0
    assert answer.err.endswith("/recipes/spiral.py\n")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["r", "--split", "tset"], 2, "The task has no tset data. Did you mean 'test'?"),
        (["r", "--which", "newest"], 2, "Expected one of ('best', 'last', 'average')"),
        (["r", "--splt", "test"], 2, "Perhaps you meant: --split STR"),
        (["nowhere"], 1, "There is no run folder nowhere. Check the path."),
        (["mine.py"], 1, "mine.py is not a run folder"),
        ([], 2, "Run folder"),
    ],
)
def test_usage_error_is_rejected(surestep, run, words, code, message):
    answer = surestep("evaluate", *words)
    assert (answer.code, answer.out) == (code, "")
    assert message in " ".join(answer.err.split())


def test_changed_recipe_is_not_run_unless_allowed(surestep, run, recipe, folder):
    recipe("print('running')\n" + RECIPE)
    answer = surestep("evaluate", "r")
    assert (answer.code, answer.out) == (2, "")
    assert f"{folder / 'mine.py'} has changed since r was trained." in answer.err
    assert "--allow recipe" in answer.err
    told = surestep("evaluate", "r", "--allow", "recipe", "--json")
    assert told.code == 0
    assert "running" in told.out


def test_missing_recipe_is_reported(surestep, run, folder):
    (folder / "mine.py").unlink()
    answer = surestep("evaluate", "r")
    assert (answer.code, answer.out) == (2, "")
    assert f"The recipe of r is missing: {folder / 'mine.py'}." in answer.err


def test_run_started_from_python_shows_how_to_load_it(surestep, folder):
    tiny.fit(folder / "r")
    answer = surestep("evaluate", "r")
    assert (answer.code, answer.out) == (1, "")
    assert "was started from Python, not from a recipe" in answer.err
    assert "surestep.Run(path).load_model(model)" in answer.err
    by_trainer = 'surestep.Trainer(task, config, run=path).evaluate("test")'
    assert by_trainer in answer.err
    assert by_trainer in surestep("predict", "r").err
    trainer = package.Trainer(tiny.task(test=tiny.data()), tiny.config(), run=folder / "r")
    assert trainer.evaluate("test")["test/loss"] > 0
    trainer.close()
    path, model = folder / "r", tiny.model(seed=5)
    assert package.Run(path).load_model(model).step == 6


def test_run_without_checkpoints_is_reported(surestep, run, folder):
    shutil.rmtree(folder / "r" / "checkpoints")
    answer = surestep("evaluate", "r")
    assert (answer.code, answer.out) == (1, "")
    assert "r had checkpoints, and has none now. Put a copy of one back" in answer.err


def test_task_without_validation_data_names_its_splits(surestep, recipe):
    text = RECIPE.replace("val=(x[24:32], y[24:32]),", "")
    assert surestep("train", recipe(text), "--run", "r").code == 0
    answer = surestep("evaluate", "r")
    assert (answer.code, answer.out) == (2, "")
    assert "The task has no val data. Known: train, test." in answer.err


def test_split_val_evaluates_every_validation_set(surestep, recipe):
    text = RECIPE.replace(
        "val=(x[24:32], y[24:32]),", 'val={"near": (x[24:28], y[24:28]), "far": (x[28:], y[28:])},'
    )
    assert surestep("train", recipe(text), "--run", "r").code == 0
    both = json.loads(surestep("evaluate", "r", "--json").out)["metrics"]
    assert set(both) == {"near/loss", "near/accuracy", "far/loss", "far/accuracy"}
    far = json.loads(surestep("evaluate", "r", "--split", "far", "--json").out)["metrics"]
    assert far == {name: both[name] for name in ("far/loss", "far/accuracy")}


TABLE = "import torchmetrics\n" + RECIPE.replace(
    'metrics={"accuracy": accuracy}',
    'metrics={"accuracy": accuracy, '
    '"table": torchmetrics.ConfusionMatrix("multiclass", num_classes=3)}',
)


def test_confusion_matrix_is_shown_as_a_table(surestep, recipe):
    trained = surestep("train", recipe(TABLE), "--run", "r")
    assert trained.code == 0
    assert " a table of 3 x 3 \n" in trained.out
    answer = surestep("evaluate", "r")
    counts = json.loads(surestep("evaluate", "r", "--json").out)["metrics"]["val/table"]
    assert sum(map(sum, counts)) == 8
    assert "val/table: rows true, columns predicted\n" in answer.out
    assert "\n 0 1 2 \n" in answer.out
    for name, row in enumerate(counts):
        assert f" {name} {' '.join(f'{each:g}' for each in row)} \n" in answer.out


def test_run_with_a_table_in_its_checkpoints_resumes(surestep, recipe):
    assert surestep("train", recipe(TABLE), "--run", "r", "--max-steps", "3").code == 0
    assert surestep("evaluate", "r", "--which", "last").code == 0
    assert surestep("train", recipe(TABLE), "--run", "r", "--max-steps", "3").code == 0


def test_nan_metric_is_explained(surestep, recipe):
    text = RECIPE.replace(
        "return (outputs.argmax(dim=1) == targets).float().mean()",
        "return (outputs.argmax(dim=1) == targets).sum(), 0",
    )
    assert surestep("train", recipe(text), "--run", "r").code == 0
    answer = surestep("evaluate", "r")
    assert " val/accuracy nan " in answer.out
    assert "\nA metric is nan if no sample or prediction counts for it" in answer.out


def test_table_metric_cannot_be_the_monitor(surestep, recipe):
    answer = surestep("train", recipe(TABLE), "--validation.metric", "table")
    assert (answer.code, answer.out) == (2, "")
    assert "validation.metric='table' is a table, which cannot be compared" in answer.err
    assert "Metrics that are numbers: val/loss, val/accuracy." in answer.err
