import json
import re
from io import StringIO

import pytest

from surestep.cli.help import COMMON, DEFAULTS
from surestep.cli.main import COMMANDS, main
from surestep.config.config import iter_options
from surestep.recipes.find import BUILT_IN, COMPUTED, find
from surestep.recipes.load import load
from tests.cli.conftest import HEAD, RECIPE

# Options that do not apply to the recipe of these tests, each with what makes them apply.
OF_NO_USE = {
    "scaler.": ["--precision", "fp16"],
    "average.decay": ["--average.kind", "ema"],
    "early-stop.min-delta": ["--early-stop.patience=3"],
    "compile-blocks": ["--compile", "default"],
    "max-nonfinite": ["--on-nonfinite", "skip"],
    "max-rollbacks": ["--on-spike", "rollback"],
    "optim.momentum": ["--optim.name", "sgd"],
    "optim.max-iter": ["--optim.name", "lbfgs"],
    "schedule.gamma": ["--schedule.name", "step"],
    "parallel.shard": ["--nproc", "2"],
}


def sections(text):
    """Return the options of each section of a help page."""
    found, title = {}, ""
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][^.]*:", line):
            title = line
        elif match := re.match(r" --([a-zA-Z_.0-9-]+)", line):
            found.setdefault(title, []).append(match[1])
    return found


@pytest.mark.parametrize("words", [[], ["mine.py"]])
def test_help_shows_the_common_options_first_and_each_option_once(surestep, recipe, words):
    recipe()
    answer = surestep("train", *words, "--help")
    assert (answer.code, answer.err) == (0, "")
    found = sections(answer.out)
    assert next(iter(found)) == "Common options:"
    assert found["Common options:"] == [name.replace("_", "-") for name in COMMON]
    every = [option for section in found.values() for option in section]
    assert len(every) == len(set(every)) < 95
    assert len(answer.out.splitlines()) < 200


def test_help_page_has_twelve_common_options():
    assert len(COMMON) == 12
    assert set(COMMON) <= {name for name, _ in iter_options()}


@pytest.mark.parametrize("name", OF_NO_USE)
def test_option_is_shown_if_it_applies(surestep, recipe, name):
    assert f" --{name}" not in surestep("train", recipe(), "--help").out
    assert f" --{name}" in surestep("train", recipe(), *OF_NO_USE[name], "--help").out


def test_values_of_the_recipe_decide_which_options_apply(surestep, recipe):
    sgd = RECIPE.replace("Optim(lr=0.01)", 'Optim(name="sgd", lr=0.01)')
    shown = surestep("train", recipe(sgd), "--help").out
    assert " --optim.momentum" in shown
    assert " --optim.betas" not in shown


def test_help_shows_what_the_recipe_sets(surestep, recipe):
    lr = RECIPE.replace("lr=0.01", "lr=1 / 3")
    shown = " ".join(surestep("train", recipe(lr), "--help").out.split())
    assert "step, summed over all ranks. (8: set by recipe mine)" in shown
    explained = "find: measured first. (set by recipe mine)"
    assert f"--optim.lr FLOAT|find Peak learning rate; {explained}" in shown
    assert "--task.hidden VALUE how wide the one layer is. (8: the recipe's default)" in shown
    assert "more options belong to features that are not used: --help-all shows them." in shown


def test_help_runs_no_recipe(surestep, recipe):
    text = RECIPE + "\nraise SystemExit('was run')\n"
    assert surestep("train", recipe(text), "--help").code == 0


@pytest.mark.parametrize(
    "text",
    [
        "def make():\n    return task\n" + RECIPE + "\ntask = task\n",
        RECIPE.replace("def task(", "@surestep_passes\ndef task(").replace(
            "config =", "def surestep_passes(function):\n    return function\n\nconfig ="
        ),
    ],
    ids=["bound twice", "decorated"],
)
def test_help_runs_a_recipe_whose_source_hides_its_parameters(surestep, recipe, text):
    shown = " ".join(surestep("train", recipe(text), "--help").out.split())
    assert "--task.hidden VALUE how wide the one layer is. (8: the recipe's default)" in shown


@pytest.mark.parametrize("name", BUILT_IN)
def test_parsed_outline_equals_the_loaded_recipe(name):
    outline, recipe = find(name).outline(), load(name)
    assert outline.doc is not None
    assert [*outline.parameters] == [*recipe.parameters]
    for parameter, shown in outline.parameters.items():
        assert shown.default == repr(recipe.parameters[parameter].default)
        assert shown.about
    assert outline.options.keys() == recipe.config.set_options().keys()
    for option, value in outline.options.items():
        if option != "optim.groups":  # read as rules
            said = recipe.config.set_options()[option]
            assert value in (said, COMPUTED) or (value, said) == ("off", None)


def test_defaults_used_by_help_are_those_of_the_plan(surestep, recipe):
    bare = recipe(RECIPE.replace("optim=surestep.Optim(lr=0.01),\n", ""))
    rows = json.loads(surestep("plan", bare, "--json").out)["decisions"]
    decided = {each["option"]: str(each["value"]) for each in rows}
    assert {name: decided[name] for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize("command", [["train"], ["plan"], ["train", "--help"]])
def test_script_that_trains_is_rejected_without_training(surestep, recipe, folder, command):
    script = f"{HEAD}task = surestep.Task(nn.Linear(4, 3), nn.CrossEntropyLoss(), train=(x, y))\n"
    script += "config = surestep.Config(epochs=1, batch_size=8)\n"
    recipe(f"{script}surestep.Trainer(task, config, run='runs/script').fit()\n", "script.py")
    answer = surestep(command[0], "script.py", *command[1:])
    assert (answer.code, answer.out) == (2, "")
    assert "script.py has no function called task. Write: def task(" in answer.err
    assert not (folder / "runs").exists()


class Terminal(StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


PAGES = [[name] for name in COMMANDS]
PAGES += [["ckpt", "list"], ["mirror", "push"], ["track", "replay"], ["search", "show"]]


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_help_page_has_no_color_if_no_color_is_set(monkeypatch, words):
    pages = []
    monkeypatch.setenv("TERM", "xterm")
    for value in ("1", ""):
        monkeypatch.setenv("NO_COLOR", value)
        monkeypatch.setattr("sys.stdout", terminal := Terminal())
        try:
            main([*words, "--help"])
        except SystemExit as left:
            assert left.code == 0  # noqa: PT017
        pages.append(terminal.getvalue())
    plain, colored = pages
    assert "\x1b" not in plain
    assert plain == re.sub(r"\x1b\[[\d;]*m", "", colored)
    assert f"surestep {words[0]}" in plain


def test_error_of_the_command_line_has_no_color_if_no_color_is_set(monkeypatch, capfd):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", Terminal())
    with pytest.raises(SystemExit):
        main(["evaluate", "--bad"])
    printed = capfd.readouterr().err
    assert "surestep evaluate --help" in printed
    assert "\x1b" not in printed
