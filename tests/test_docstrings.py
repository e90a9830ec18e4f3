"""The public docstrings are complete: parameters, results and errors; and their examples run."""

import ast
import doctest
import inspect
import re
import textwrap
from dataclasses import is_dataclass

import pytest

import surestep
from surestep import ManualStep, Session, SurestepError
from surestep.config.group import ConfigGroup
from surestep.config.option import PluginOption
from surestep.engine.losses.base import LossModule
from surestep.engine.parallel.base import Strategy
from surestep.engine.parallel.ddp import DDPStrategy
from surestep.engine.parallel.distributed import DistributedStrategy

HAVE_EXAMPLES = [
    *("Callback", "Config", "InitWeights", "ManualStep", "Optim", "Run", "Schedule", "Task"),
    *("Trainer", "derive_seed", "prepare", "whole_set"),
]
DOCUMENTED = [
    name
    for name in surestep.__all__
    if inspect.isclass(getattr(surestep, name)) or inspect.isfunction(getattr(surestep, name))
]
# Not in surestep.__all__: what a user derives from, or gets from a public function.
BASES = [DDPStrategy, DistributedStrategy, LossModule, PluginOption, Strategy]
MADE_BY_SURESTEP = (ManualStep, Session, SurestepError)  # no one else calls their __init__


def examples_of(name):
    return doctest.DocTestParser().get_doctest(
        inspect.getdoc(getattr(surestep, name)), {}, name, None, None
    )


def list_public():
    """Return every public function and class by name; those of `losses` as "losses.huber"."""
    found = {kind.__name__: kind for kind in BASES}
    for name in surestep.__all__:
        value = getattr(surestep, name)
        names = value.__all__ if inspect.ismodule(value) else ()
        found |= {f"{name}.{inner}": getattr(value, inner) for inner in names} or {name: value}
    return {name: value for name, value in found.items() if hasattr(value, "__qualname__")}


def function_of(value):
    """Return the function of a method or property of surestep; None for anything else."""
    value = getattr(value, "fget", getattr(value, "__func__", value))
    is_ours = getattr(value, "__module__", "").startswith("surestep.")
    return value if inspect.isfunction(value) and is_ours else None


def list_methods(kind):
    """Return the public methods and properties of a class; a base documents what it introduced."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("surestep.")]
    theirs = {name for base in kind.__mro__ if base not in ours for name in vars(base)}
    methods = {}
    for base in ours:
        for name, value in vars(base).items():
            if name[0] != "_" and name not in theirs and function_of(value):
                methods[name] = (f"{base.__name__}.{name}", value)
    return dict(methods.values())


PUBLIC = list_public()
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
for public_class in CLASSES.values():
    FUNCTIONS |= list_methods(public_class)


def section(text, title):
    """Return a section of a docstring, without its title and indent; "" if there is none."""
    found = re.search(rf"^{title}:\n((?: +.*\n?|\n)+)", text, re.MULTILINE)
    return textwrap.dedent(found[1]) if found else ""


def missing_parameters(function, text):
    """Return the parameters that a docstring does not list; one line may list several."""
    lists = f"{section(text, 'Args')}\n{section(text, 'Attributes')}"
    listed = re.findall(r"\w+", " ".join(re.findall(r"^(\w[\w, ]*):", lists, re.MULTILINE)))
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return [f"{name} in Args" for name in names if name not in listed]


def missing_errors(functions, text):
    """Return the errors that functions raise by name, and that a docstring does not list."""
    trees = [ast.parse(textwrap.dedent(inspect.getsource(each))) for each in functions]
    raised = [node.exc for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    names = {getattr(getattr(each, "func", each), "id", "") for each in raised}
    errors = sorted(name for name in names if name[:1].isupper() and name != "NotImplementedError")
    listed = section(text, "Raises")
    return [f"{name} in Raises" for name in errors if not re.search(rf"\b{name}\b", listed)]


def find_gaps(function):
    """Return what is missing in the docstring of a function, method or property."""
    is_property, function = isinstance(function, property), function_of(function) or function
    text = inspect.getdoc(function) or ""
    gaps = missing_parameters(function, text)
    returned = inspect.signature(function).return_annotation
    is_nothing = is_property or returned in (None, "None")
    sections = section(text, "Returns") + section(text, "Yields")
    if not (is_nothing or re.match("(Return|Yield) ", text) or sections):
        gaps.append("Returns")
    return gaps + missing_errors([function], text)


def find_class_gaps(kind):
    """Return what is missing in the docstring of a class, or in the descriptions of its options."""
    own, text, gaps = vars(kind), inspect.getdoc(kind) or "", []
    if issubclass(kind, ConfigGroup):
        fields = kind.model_fields.items()
        options = {name: each for name, each in fields if not isinstance(each.default, ConfigGroup)}
        gaps = [f"help of {name}" for name, each in options.items() if not each.description]
    elif not issubclass(kind, MADE_BY_SURESTEP) and "__init__" in own:
        gaps = missing_parameters(kind, text)
    made_by = ["__new__", "__post_init__", *([] if is_dataclass(kind) else ["__init__"])]
    functions = [function_of(own.get(name)) for name in made_by]
    return gaps + missing_errors(filter(None, functions), text)


@pytest.mark.parametrize("name", HAVE_EXAMPLES)
def test_main_public_names_have_an_example(name):
    assert examples_of(name).examples


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if examples_of(name).examples])
def test_examples_print_the_shown_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = []
    doctest.DocTestRunner().run(examples_of(name), out=report.append)
    assert "".join(report) == ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_of_a_public_function_is_complete(name):
    assert find_gaps(FUNCTIONS[name]) == []


@pytest.mark.parametrize("name", CLASSES)
def test_docstring_of_a_public_class_is_complete(name):
    assert find_class_gaps(CLASSES[name]) == []


def test_public_methods_and_classes_are_found():
    methods = ("Callback.on_step", "LossModule.total", "ManualStep.grad", "Session.steps")
    assert {*methods, "Run.best", "Config.from_options", "samplers.mixture"} <= FUNCTIONS.keys()
    assert {"losses.huber", "Optim", "PluginOption", "Trainer"} <= CLASSES.keys()


def test_gaps_of_a_docstring_are_found():
    def sample(first, *second, **third) -> int:  # noqa: D417
        """Count.

        Args:
            first: a number, and
                second: not a parameter.
        """
        if first:
            raise ValueError("no")
        return 1

    expected = ["second in Args", "third in Args", "Returns", "ValueError in Raises"]
    assert find_gaps(sample) == expected
