"""`docs/eject.md` shows what is printed today."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from surestep.eject.script import print_script
from surestep.recipes.load import call_recipe, load

PAGE = Path(__file__).parents[2] / "docs" / "eject.md"
ROWS = re.findall(r"^\| (\w+) \| printed \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)


# torch leaves Tensor.backward without types.
STRICT = ("--strict", "--allow-untyped-calls", "--ignore-missing-imports", "--no-error-summary")


FEW_FILES = {"images": {"task.files": 60, "task.size": 64}}


@cache
def print_recipe(name: str) -> str:
    call = call_recipe(load(name), FEW_FILES.get(name, {}), {})
    return print_script(call, f"`surestep train {name}`")


def count_lines(text: str) -> tuple[str, str]:
    """Return the lines of a script, and those that are copied from its recipe."""
    recipe = text.partition("class Parts")[2].partition("@dataclass\nclass Progress")[0]
    own = recipe.partition("\n\n\n")[2].rstrip()
    return str(len(text.splitlines())), str(len(own.splitlines()))


@pytest.mark.slow("builds the tasks of the built-in recipes")
def test_table_counts_the_lines_of_each_script():
    assert len(ROWS) == 9
    assert [(name, *count_lines(print_recipe(name))) for name, *_ in ROWS] == ROWS


@pytest.mark.slow("builds the tasks of the built-in recipes")
def test_functions_of_scripts_are_short():
    for name, *_ in ROWS:
        for node in ast.walk(ast.parse(print_recipe(name))):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 60, f"{name}: {node.name}"


@pytest.mark.slow("builds the task of a built-in recipe")
def test_step_is_that_of_the_script():
    (step,) = re.findall(r"```text\n(def .*?)```", PAGE.read_text(), re.DOTALL)
    assert step in print_recipe("digits")


@pytest.mark.slow("reads the types of torch")
def test_scripts_of_the_built_in_recipes_are_typed(tmp_path):
    for name, *_ in ROWS:
        (tmp_path / f"{name}.py").write_text(print_recipe(name), encoding="utf-8")
    line = [sys.executable, "-m", "mypy", *STRICT, *tmp_path.glob("*.py")]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("", 0)
