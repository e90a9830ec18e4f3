"""Each mistake gives a message with the value and what to type, and leaves no run."""

from pathlib import Path

import pytest

from surestep import recipes
from surestep.record.lock import RunLock
from tests.cli.conftest import HEAD, RECIPE

FILES = Path(recipes.__file__).parent.glob("*.py")
SHIPPED = sorted(path.stem for path in FILES if path.stem not in ("__init__", "find", "load"))
CONFIG = "config = surestep.Config(epochs=2, batch_size=8)\n"


def task(body="", parameters="", **parts):
    """Write a recipe whose task has the default parts except `parts`."""
    usual = {"model": "nn.Linear(4, 3)", "loss": "nn.CrossEntropyLoss()", "train": "(x, y)"}
    given = ", ".join(f"{name}={value}" for name, value in {**usual, **parts}.items())
    return f"{HEAD}{CONFIG}def task({parameters}):\n    {body}\n    return surestep.Task({given})\n"


RECIPES = {
    "no task": (HEAD + CONFIG, 2, "mine.py has no function called task. Write: def task("),
    "a task that is no function": (
        f"{HEAD}{CONFIG}task: object = 3",
        2,
        "mine.py has no function called task. Write: def task(",
    ),
    "no config": (HEAD + "def task(): ...", 2, "mine.py has no config. Write: config = surestep."),
    "another config": (
        HEAD + "config = {}\ndef task(): ...",
        2,
        "mine.py has no config. Write: config = surestep.Config(",
    ),
    "a bad config": (
        "import surestep\nconfig = surestep.Config(epoch=3)\ndef task(): ...",
        2,
        "There is no option 'epoch'. Did you mean 'epochs'?",
    ),
    "raises at import": (
        "\nraise ValueError('boo')\ndef task(): ...",
        2,
        "mine.py, line 2: ValueError: boo",
    ),
    "missing import": (
        "import nowhere_at_all\ndef task(): ...",
        2,
        "mine.py, line 1: ModuleNotFound",
    ),
    "raises when called": (task("1 / 0"), 2, "mine.py, line 10: ZeroDivisionError: division by"),
    "raises in the model": (
        task(model="lambda: nn.Linear(4)"),
        1,
        "mine.py, line 11: TypeError: Linear.__init__() missing 1",
    ),
    "returns nothing": (
        task().replace("return surestep", "surestep"),
        2,
        "mine.py: task() returned a NoneType, not a surestep.Task. Is a return missing?",
    ),
    "not Python": ("import surestep\ndef task(:\n", 2, "mine.py, line 2: SyntaxError: invalid"),
    "undefined annotation": (task(parameters="width: 'Nope' = 3"), 2, "Nope"),
    "no data": (task(train="(x[:0], y[:0])"), 1, "The train data is empty"),
    "no validation data": (task(val="(x[:0], y[:0])"), 1, "The val data is empty"),
    "float classes": (
        task(train="(x, y.float())"),
        1,
        "The targets are torch.float32 of shape (8,). Class indices are integers: use targets.long",
    ),
    "target beyond the classes": (
        task(model="nn.Linear(4, 2)"),
        1,
        "The targets run from 0 to 2, and the model has 2 outputs: class indices are 0 to 1.",
    ),
    "NaN": (
        task("x[:, 2] = torch.nan"),
        1,
        "The inputs of the first batch hold 8 values that are NaN or infinite (shape (8, 4))",
    ),
    "other features": (
        task(model="nn.Linear(5, 3)"),
        1,
        "The model fails on the first batch, whose inputs have shapes [(8, 4)]",
    ),
    "unreduced loss": (
        task(loss="nn.CrossEntropyLoss(reduction='none')"),
        1,
        "CrossEntropyLoss(reduction='none') returns a loss for each element",
    ),
    "unreduced custom loss": (
        task(loss="lambda outputs, targets: ((outputs - 1) ** 2).mean(1)"),
        1,
        "The loss has shape (8,), and a step needs one number. Return its mean: loss.mean().",
    ),
    "a parameter is missing": (
        task(parameters="hidden: int"),
        2,
        "mine's task needs hidden: set --task.hidden VALUE.",
    ),
    "no length": (
        task().replace("epochs=2, ", ""),
        2,
        "The length of the run is not set. Set epochs=10 or max_steps=1000.",
    ),
}


@pytest.mark.parametrize("command", ["train", "train --dry-run"])
@pytest.mark.parametrize("case", RECIPES)
def test_bad_recipe_gives_one_sentence_and_no_run(surestep, recipe, folder, case, command):
    text, code, message = RECIPES[case]
    answer = surestep(*command.split()[:1], recipe(text), *command.split()[1:])
    assert message in answer.err
    assert (answer.code, answer.out) == (code, "")
    assert len(answer.err.splitlines()) == 1
    assert [*(folder / "runs").glob("*")] == []


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py", f"missing.py does not exist. Built-in recipes: {', '.join(SHIPPED)}."),
        ("digit", "There is no recipe 'digit'. Did you mean 'digits'? Or give a file"),
        ("notes.txt", "Give a .py file."),
        (".", "There is no recipe '.'"),
        ("random.py", "random.py has the name of a module that is used already: random. Rename"),
        ("numpy.py", "numpy.py has the name of a module that is used already: numpy. Rename it"),
        ("my-recipe.py", "Rename it, for example to my_recipe.py."),
        ("3layers.py", "3layers.py cannot be imported: '3layers' is not a Python name. Rename it"),
    ],
)
def test_name_that_is_not_a_recipe_is_rejected(surestep, recipe, command, name, message):
    if name not in ("missing.py", "digit", "."):
        recipe(RECIPE, name)
    answer = surestep(command, name)
    assert message in answer.err
    assert (answer.code, answer.out) == (2, "")


def test_suggested_new_name_of_a_recipe_works(surestep, recipe):
    recipe(RECIPE, "3layers.py")
    advice = surestep("plan", "3layers.py").err.split()[-1].rstrip(".")
    assert surestep("plan", recipe(RECIPE, f"{advice.removesuffix('.py')}.py")).code == 0


def test_parameter_without_a_command_line_form_is_rejected(surestep, recipe):
    text = task(parameters="act: nn.Module = nn.ReLU()")
    assert surestep("plan", recipe(text)).code == 0
    answer = surestep("plan", "mine.py", "--task.act", "relu")
    assert (answer.code, answer.out) == (2, "")
    assert "task.act='relu' is not allowed" in answer.err


def test_later_nan_is_reported_with_the_step_and_the_gradients(surestep, recipe, folder):
    text = task("x[30] = torch.nan")
    answer = surestep("train", recipe(text), "--run", "r", "--data.shuffle", "False")
    assert (answer.code, answer.out) == (1, "")
    assert "NonFiniteError: Step 4 was not finite: its loss is nan" in answer.err
    assert "2 of 2 gradients are not finite: weight, bias" in answer.err
    assert "set --on-nonfinite skip (on_nonfinite='skip' in Python)" in answer.err
    advice = "--exclude-samples 30 --allow exclude_samples"
    assert f"{advice} (exclude_samples=[30], and allow=('exclude_samples',) to " in answer.err
    assert "Saved as r/checkpoints/step-00000003." in answer.err
    again = surestep("train", "mine.py", "--run", "r", "--data.shuffle", "False", *advice.split())
    assert again.code == 0, again.err


def test_skipped_steps_are_counted_in_the_last_table(surestep, recipe):
    text = task("x[30] = torch.nan")
    words = ("--run", "r", "--data.shuffle", "False", "--on-nonfinite", "skip")
    answer = surestep("train", recipe(text), *words)
    assert answer.code == 0
    assert " skipped steps 2 not finite " in answer.out


def test_locked_run_is_rejected_with_the_owner_of_the_lock(surestep, recipe, folder):
    (folder / "r").mkdir()
    hold = RunLock(folder / "r")
    try:
        answer = surestep("train", recipe(), "--run", "r")
    finally:
        hold.release()
    assert (answer.code, answer.out) == (1, "")
    assert "r is in use by" in answer.err
    assert "choose another folder" in answer.err


@pytest.mark.parametrize("run", ["mine.py", "mine.py/inside", "/proc/run"])
def test_run_folder_that_cannot_be_created_is_rejected(surestep, recipe, run):
    answer = surestep("train", recipe(), "--run", run)
    assert (answer.code, answer.out) == (1, "")
    assert f"{run} cannot be a run folder" in answer.err
    assert "--run" in answer.err
