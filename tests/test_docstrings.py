"""The public docstrings: their examples run, and the main names have one."""

import doctest
import inspect

import pytest

import surestep

HAVE_EXAMPLES = [
    *("Callback", "Config", "InitWeights", "ManualStep", "Optim", "Run", "Schedule", "Task"),
    *("Trainer", "derive_seed", "prepare", "whole_set"),
]
DOCUMENTED = [
    name
    for name in surestep.__all__
    if inspect.isclass(getattr(surestep, name)) or inspect.isfunction(getattr(surestep, name))
]


def examples_of(name):
    return doctest.DocTestParser().get_doctest(
        inspect.getdoc(getattr(surestep, name)), {}, name, None, None
    )


@pytest.mark.parametrize("name", HAVE_EXAMPLES)
def test_main_public_names_have_an_example(name):
    assert examples_of(name).examples


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if examples_of(name).examples])
def test_examples_print_the_shown_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = []
    doctest.DocTestRunner().run(examples_of(name), out=report.append)
    assert "".join(report) == ""


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_parameter_of_a_public_function_is_documented(name):
    kind = getattr(surestep, name)
    text = inspect.getdoc(kind)
    if inspect.isfunction(kind) and "Args:" in text:
        assert [each for each in inspect.signature(kind).parameters if f"{each}:" not in text] == []
