"""`surestep new project` writes folders whose recipes learn, and never into one that exists."""

import ast
import sys
import tomllib

import pytest

from surestep.base.errors import ConfigError
from surestep.cli import new_project
from surestep.cli.new_project import KINDS, write_project
from surestep.recipes.load import call_recipe, load
from surestep.trainer.dry_run import overfit
from tests.read_modules import forget_modules


@pytest.mark.parametrize("kind", KINDS)
def test_recipe_of_every_kind_learns_32_samples(tmp_path, kind):
    write_project(tmp_path / "mine", kind)
    with forget_modules(tmp_path):
        call = call_recipe(load(str(tmp_path / "mine" / "recipe.py")), {}, {})
        assert overfit(call.task(), call.config, 32).has_converged


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_every_kind_can_be_read(tmp_path, kind):
    paths = {
        path.relative_to(tmp_path / "mine").as_posix(): path.read_text()
        for path in write_project(tmp_path / "mine", kind)
    }
    assert tomllib.loads(paths["pyproject.toml"])["project"]["name"] == "mine"
    assert f"A {kind} that surestep trains" in paths["README.md"]
    assert "surestep check recipe.py" in paths[".github/workflows/check.yml"]
    for path, text in paths.items():
        if path.endswith(".py"):
            assert ast.get_docstring(ast.parse(text))
    assert "assert_laws(recipe.task, recipe.config)" in paths["tests/test_recipe.py"]


def test_command_writes_and_says_what_is_next(surestep, tmp_path):
    folder = tmp_path / "mine"
    answer = surestep("new", "project", str(folder), "--kind", "regressor")
    assert answer.code == 0, answer.err
    assert f"cd {folder} && surestep train recipe.py" in answer.out
    assert (folder / "recipe.py").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mine", "--kind", "regresor"), "Did you mean 'regressor'?"),
        (("my project", "--kind", "regressor"), "is not a name of a project"),
        (("mine",), "Kind (classifier, regressor, language-model, fine-tune) is not set"),
        ((), "Name of the project is not set"),
        ((".", "--kind", "regressor"), "is not a name of a project"),
    ],
)
def test_bad_name_or_kind_is_rejected(surestep, words, message):
    answer = surestep("new", "project", *words)
    assert answer.code == 2
    assert message in answer.err


def test_folder_that_exists_is_never_written_into(surestep, tmp_path):
    answer = surestep("new", "project", str(tmp_path), "--kind", "classifier")
    assert answer.code == 2
    assert list(tmp_path.iterdir()) == []
    folder = tmp_path / "mine"
    folder.symlink_to(tmp_path / "nowhere")
    answer = surestep("new", "project", str(folder), "--kind", "classifier")
    assert "exists already, and nothing is written into it" in answer.err
    assert not (tmp_path / "nowhere").exists()


def test_kind_is_asked_for(monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    questions = []
    answer = new_project._ask("Kind", "--kind", lambda text: questions.append(text) or " gan ")
    assert (answer, questions) == ("gan", ["Kind: "])
    with pytest.raises(ConfigError, match="Kind is not set"):
        new_project._ask("Kind", "--kind", lambda text: "")
