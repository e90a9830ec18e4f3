import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError, RecipeError
from surestep.cli.main import main
from surestep.recipes import load as module
from surestep.recipes.find import BUILT_IN, SHIPPED, recipe_argument, sha256
from surestep.recipes.load import RecipeCall, load
from tests import tiny
from tests.cli.conftest import HEAD, RECIPE

TYPED = f"""{HEAD}
config = surestep.Config(epochs=1)

def task(a: int, b=2.5, c=True, d="x", e: list[int] = (), f: float | None = None, g=None):
    return surestep.Task(model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(), train=(x, y))
"""


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_recipe_loads_by_its_name(name):
    recipe = load(name)
    assert recipe.name == name
    assert recipe.path == SHIPPED / f"{name}.py"
    assert recipe.config.set_options()["batch_size"] in (16, 32, 64)
    assert recipe.module.__doc__


def test_every_file_beside_the_loader_is_a_built_in_recipe():
    beside = {"__init__", "find", "load"}
    assert {path.stem for path in SHIPPED.glob("*.py")} - beside == set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_recipe_documents_its_parameters(name):
    recipe = load(name)
    for parameter in recipe.parameters.values():
        assert f"        {parameter.name}: " in recipe.module.task.__doc__
        assert parameter.default is not parameter.empty


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_recipe_uses_only_public_names(name):
    for node in ast.walk(ast.parse((SHIPPED / f"{name}.py").read_text())):
        if isinstance(node, ast.ImportFrom):
            module = node.module or "surestep"
            assert not module.startswith("surestep") or module.startswith("surestep.recipes.")
        if isinstance(node, ast.Import):
            assert not any(each.name.startswith("surestep.") for each in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "surestep" or node.attr in surestep.__all__


def test_recipe_file_loads_by_path_from_any_directory(recipe, folder, monkeypatch):
    recipe()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    found = load("../mine.py")
    assert (found.name, found.path) == ("mine", folder / "mine.py")


def test_recipe_can_import_a_file_beside_it(recipe, folder):
    (folder / "beside_it.py").write_text("lr = 0.25")
    recipe("import beside_it\n" + RECIPE.replace("lr=0.01", "lr=beside_it.lr"))
    assert load("mine.py").config.optim.lr == 0.25


def test_recipe_is_read_again_at_each_load(recipe):
    assert load(recipe()).config.epochs == 2
    assert load(recipe(RECIPE.replace("epochs=2", "epochs=31"))).config.epochs == 31


def test_failing_recipe_leaves_no_module_behind(recipe):
    with pytest.raises(RecipeError, match=r"mine\.py, line 1: ZeroDivisionError"):
        load(recipe("1 / 0\ndef task(): ..."))
    assert "mine" not in sys.modules
    with pytest.raises(ConfigError, match="epoch"):
        load(recipe("import surestep\nsurestep.Config(epoch=1)\ndef task(): ..."))
    assert "mine" not in sys.modules
    assert load(recipe()).name == "mine"


@pytest.mark.parametrize(
    ("name", "typed_value", "value"),
    [
        ("a", "3", 3),
        ("a", 3, 3),
        ("b", "1e-3", 1e-3),
        ("c", "false", False),
        ("d", "3", "3"),
        ("e", "[1, 2]", [1, 2]),
        ("f", "null", None),
        ("f", "2", 2.0),
        ("g", "3", "3"),
    ],
)
def test_text_is_parsed_as_the_type_of_the_parameter(recipe, name, typed_value, value):
    typed = load(recipe(TYPED)).typed({"a": "1", name: typed_value})
    assert typed[name] == value
    assert type(typed[name]) is type(value)


@pytest.mark.parametrize(
    ("typed_value", "message"),
    [
        ({"a": "1.5"}, r"task\.a='1\.5' is not allowed: it must be a valid integer"),
        ({"a": "1", "b": "wide"}, r"task\.b='wide' is not allowed"),
        ({"a": "1", "c": "maybe"}, r"task\.c='maybe' is not allowed"),
        ({"a": [1]}, r"task\.a=\[1\] is not allowed"),
        ({"a": "1", "aa": "3"}, r"mine's task has no parameter 'aa'\. Did you mean 'a'\?"),
        ({}, r"mine's task needs a: set --task\.a VALUE\."),
    ],
)
def test_value_of_the_wrong_type_is_rejected(recipe, typed_value, message):
    with pytest.raises(RecipeError, match=message):
        load(recipe(TYPED)).typed(typed_value)


def test_task_is_built_after_seeding(recipe):
    text = f"""{HEAD}
config = surestep.Config(epochs=1, seed=7)

def task():
    return surestep.Task(model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(), train=(x, y))
"""
    found = load(recipe(text))
    torch.manual_seed(99)
    first = found.build({}, found.config).model
    second = found.build({}, found.config).model
    surestep.set_seed(surestep.derive_seed("recipe", 7))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.weight, nn.Linear(4, 3).weight)


def test_error_names_the_last_line_in_the_recipe(recipe):
    text = f"{HEAD}def inner():\n    nn.Linear(4)\n\ndef task():\n    inner()\n"
    with pytest.raises(RecipeError, match=r"mine\.py, line 9: TypeError: Linear"):
        load(recipe(text)).build({}, tiny.config())


def test_error_of_surestep_is_raised_unchanged(recipe):
    text = f"{HEAD}def task():\n    surestep.Config(epoch=1)\n"
    with pytest.raises(ConfigError, match="epochs"):
        load(recipe(text)).build({}, tiny.config())


def test_callbacks_of_a_recipe_are_found(recipe):
    assert load(recipe()).callbacks == []
    found = load(recipe(RECIPE + "\ncallbacks = [surestep.Callback()]\n"))
    assert [type(each) for each in found.callbacks] == [surestep.Callback]


def test_origin_records_the_recipe_file(recipe, folder):
    found = load(recipe())
    origin = RecipeCall(found, found.config, {"hidden": 3}, {"epochs": "recipe mine"}).origin
    assert origin.name == "mine"
    assert origin.recipe == {
        "name": "mine",
        "path": str(folder / "mine.py"),
        "sha256": sha256(folder / "mine.py"),
    }
    assert (origin.parameters, origin.set_options) == ({"hidden": 3}, {"epochs": "recipe mine"})


def test_hash_equals_sha256sum(folder):
    (folder / "empty").touch()
    assert sha256(folder / "empty").startswith("e3b0c44298fc1c149afbf4c8996fb924")


def test_loader_module_is_not_a_recipe():
    assert Path(module.__file__).stem == "load"
    with pytest.raises(RecipeError, match="There is no recipe 'load'"):
        load("load")


RAN = "import pathlib\npathlib.Path('ran').touch()\n"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "task = surestep.Task(model)",
        "if True:\n    task: Task = Task(model)",
        "def make():\n    task = 1\n    return task",
        "class A:\n    def task(self): ...",
        "import task.parts as parts",
        "print(task)",
    ],
)
def test_script_without_a_function_called_task_is_rejected_before_it_runs(recipe, folder, source):
    with pytest.raises(
        RecipeError, match=r"mine\.py has no function called task\. Write: def task"
    ):
        load(recipe(RAN + source))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "source",
    [
        "def task(): ...",
        "try:\n    def task(): ...\nfinally:\n    pass",
        "if True:\n    task = lambda: None",
        "from parts import *",
        "from parts import build as task",
        "def build(): ...\ntask = build",
        "def build():\n    global task\n    task = print\nbuild()",
        "globals()['task'] = print",
        "def __getattr__(name): return print",
        "with open('mine.py') as task: pass\ntask = print",
    ],
)
def test_every_way_to_bind_the_function_is_accepted(recipe, folder, source):
    recipe("def task(): ...\nbuild = task\n", "parts.py")
    assert callable(load(recipe(RAN + source)).function)
    assert (folder / "ran").exists()


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("tabular", "sklearn", "scikit-learn"),
        ("images", "PIL", "pillow"),
        ("imbalanced", "sklearn", "scikit-learn"),
        ("hf", "transformers", "transformers"),
    ],
)
def test_package_that_a_recipe_needs_is_named_with_its_install_command(
    monkeypatch, name, module, package
):
    for imported in [name for name in sys.modules if name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, imported)
    monkeypatch.setitem(sys.modules, module, None)
    found = load(name)
    with pytest.raises(RecipeError, match=rf"Install it: pip install {package}$"):
        found.build({}, found.config)


def test_recipe_that_misses_torch_says_what_to_install(monkeypatch, recipe):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RecipeError, match=r"line 1: .*pip install 'surestep\[torch\]'"):
        load(recipe("import torch\ndef task(): ...\n"))


def test_missing_module_of_a_recipe_is_not_taken_for_a_package(recipe):
    with pytest.raises(RecipeError, match=r"No module named 'my_layers'$"):
        load(recipe("import my_layers\n" + RECIPE))


@pytest.fixture
def package(folder, recipe):
    """Write a package with a recipe that imports `parts` of it; return the folder."""
    inner = folder / "my" / "pkg"
    inner.mkdir(parents=True)
    for path in (folder / "my", inner):
        (path / "__init__.py").write_text("")
    (folder / "my/common.py").write_text("EPOCHS = 7")
    (inner / "parts.py").write_text("LR = 0.25")

    def write(imports):
        text = imports + RECIPE.replace("lr=0.01", "lr=LR").replace("epochs=2", "epochs=EPOCHS")
        (inner / "training.py").write_text(text)

    return write


RELATIVE = "from .parts import LR\nfrom ..common import EPOCHS\n"
ABSOLUTE = "from my.pkg.parts import LR\nfrom my.common import EPOCHS\n"


@pytest.mark.parametrize("name", ["my.pkg.training", "my/pkg/training.py"])
@pytest.mark.parametrize("imports", [RELATIVE, ABSOLUTE])
def test_recipe_in_a_package_loads_by_its_name_and_by_its_path(package, folder, name, imports):
    package(imports)
    found = load(name)
    assert (found.name, found.path) == ("training", folder / "my/pkg/training.py")
    assert (found.config.epochs, found.config.optim.lr) == (7, 0.25)


@pytest.mark.parametrize("imports", [RELATIVE, ABSOLUTE])
def test_run_of_a_recipe_in_a_package_resumes(package, folder, imports):
    package(imports)
    words = ["--run", "r", "--max-steps", "2"]
    assert main(["train", "my.pkg.training", *words]) == 0
    assert main(["evaluate", "r"]) == 0
    assert main(["train", "my/pkg/training.py", "--run", "r", "--max-steps", "4"]) == 0
    assert main(["resume", "r"]) == 0


@pytest.mark.parametrize("imports", [RELATIVE, ABSOLUTE])
def test_file_beside_a_recipe_in_a_package_hides_no_module_of_its_name(package, folder, imports):
    package(imports)
    (folder / "my/pkg/antigravity.py").write_text("1 / 0")
    own = importlib.util.find_spec("antigravity").origin
    load("my.pkg.training")
    assert importlib.util.find_spec("antigravity").origin == own
    assert str(folder) in sys.path


@pytest.fixture
def queue(package, folder):
    """A recipe of a package with the name of a module of Python, without relative imports."""
    package(ABSOLUTE)
    (folder / "my/pkg/training.py").rename(folder / "my/pkg/queue.py")
    return folder


def test_recipe_typed_as_a_module_is_one(queue, monkeypatch):
    found = load("my.pkg.queue")
    assert found.module.__name__ == "my.pkg.queue"
    assert sys.modules["queue"].__file__ != str(found.path)
    with pytest.raises(RecipeError, match=r"Or type it as a module: my\.pkg\.queue\."):
        load("my/pkg/queue.py")
    (queue / "my/pkg/inner").mkdir()
    monkeypatch.chdir(queue / "my/pkg/inner")
    assert load(f"{queue}/my.pkg.queue").path == load("../../../my.pkg.queue").path == found.path


def test_plain_path_in_a_package_is_a_file_of_its_own(recipe, folder):
    (folder / "__init__.py").touch()
    (folder / "helpers.py").write_text("LR = 0.25")
    found = load(recipe("from helpers import LR\n" + RECIPE.replace("lr=0.01", "lr=LR")))
    assert found.module.__name__ == "mine"
    assert found.config.optim.lr == 0.25


def test_run_of_a_module_resumes_in_any_folder(queue, monkeypatch):
    assert main(["train", "my.pkg.queue", "--run", "r", "--max-steps", "2"]) == 0
    recorded = json.loads((queue / "r/config.json").read_text())["recipe"]
    assert (recorded["name"], recorded["package"]) == ("queue", "my.pkg")
    assert recipe_argument(recorded) == f"{queue}/my.pkg.queue"
    (queue / "elsewhere").mkdir()
    monkeypatch.chdir(queue / "elsewhere")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(queue)])
    assert main(["evaluate", "../r"]) == 0
    assert main(["resume", "../r"]) == 0
    assert main(["train", recipe_argument(recorded), "--run", "../r", "--max-steps", "4"]) == 0


def test_recorded_package_names_no_other_file(queue):
    recorded = {"name": "x", "path": f"{queue}/my/pkg/queue.py", "package": "other"}
    assert recipe_argument(recorded) == f"{queue}/my.pkg.queue"
    assert recipe_argument({**recorded, "path": "/plain/mine.py"}) == "/plain/mine.py"


def test_package_is_found_through_a_symbolic_link(package, folder, tmp_path_factory, monkeypatch):
    package(RELATIVE)
    link = tmp_path_factory.mktemp("links") / "project"
    link.symlink_to(folder)
    monkeypatch.setattr(sys, "path", [str(link), *sys.path])
    monkeypatch.chdir(link.parent)
    assert load("my.pkg.training").path == folder / "my/pkg/training.py"


def test_package_with_the_name_of_a_module_is_to_be_renamed(package, folder):
    package(RELATIVE)
    (folder / "my").rename(folder / "graphlib")
    with pytest.raises(RecipeError, match=r"Rename the folder, for example to my_graphlib\.$"):
        load("graphlib.pkg.training")


def test_folder_that_is_no_python_name_is_named(package, folder):
    package("from .parts import LR\n")
    (folder / "my/pkg").rename(folder / "my-pkg")
    with pytest.raises(
        RecipeError, match=r"'my-pkg' is not .* to my_pkg, or import without"
    ) as is_:
        load("my-pkg/training.py")
    assert "Add an empty" not in str(is_.value)
    (folder / "my-pkg/__init__.py").unlink()
    with pytest.raises(RecipeError, match=r"to my_pkg, and add an empty __init__\.py, or import"):
        load("my-pkg/training.py")


def test_misspelt_module_is_told_its_neighbours_and_its_file(package, folder):
    package(RELATIVE)
    with pytest.raises(
        RecipeError, match=r"Did you mean 'my\.pkg\.training'\? .* my/pkg/trains\.py"
    ):
        load("my.pkg.trains")
    with pytest.raises(RecipeError, match=r"Or give a file, such as your/pkg/training\.py\."):
        load("your.pkg.training")


def test_relative_import_or_dotted_name_outside_of_a_package_is_rejected(package, folder, recipe):
    with pytest.raises(RecipeError, match=r"Add an empty file .*/__init__\.py, or import without"):
        load(recipe("from .parts import LR\n" + RECIPE))
    package(ABSOLUTE)
    (folder / "my/__init__.py").unlink()
    with pytest.raises(RecipeError, match=r"not each of its folders has an __init__\.py"):
        load("my.pkg.training")
    with pytest.raises(RecipeError, match=r"There is no recipe 'my\.pkg\.trains'"):
        load("my.pkg.trains")


def test_error_of_a_package_is_that_of_the_recipe(package, folder):
    package(RELATIVE)
    (folder / "my/pkg/__init__.py").write_text("1 / 0")
    with pytest.raises(RecipeError, match="ZeroDivisionError"):
        load("my.pkg.training")
