"""What the source shows at an index of a list, and under a key of a dict."""

from pathlib import Path

import pytest

from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.values import Collection, Constant


def evaluate(expression):
    """Return the value of an expression, as the doctor knows it."""
    script = f"import somewhere\nvalue = {expression}\n"
    (trace,) = follow(parse_source(Path("script.py"), script.encode()), Project()).traces
    return next(event.value for event in trace.events if event.kind == "store")


@pytest.mark.parametrize(
    ("expression", "index"),
    [
        ("[1, 2, 3]", 1),
        ("(1, 2, 3)", -1),
        ("{'lr': 1, 'params': 2}", "params"),
        ("{'lr': 1, 'lr': 2}", "lr"),
        ("{0: 1, 1: 2}", 1),
    ],
)
def test_element_is_that_of_python(expression, index):
    found = evaluate(expression).find(Constant(index))
    assert isinstance(found, Constant)
    assert found.value == eval(expression)[index]


@pytest.mark.parametrize(
    ("expression", "index"),
    [("[1, 2]", 2), ("[1, 2]", -3), ("[1, 2]", "lr"), ("{'lr': 1}", "params"), ("{'lr': 1}", 0)],
)
def test_element_that_python_does_not_have_is_not_found(expression, index):
    assert evaluate(expression).find(Constant(index)) is None
    with pytest.raises((LookupError, TypeError)):
        eval(expression)[index]


def test_element_of_an_incomplete_list_is_not_found():
    made = Collection("list", [Constant(1)], is_complete=False)
    assert made.find(Constant(0)) is None


def test_entries_are_those_with_a_known_key():
    made = evaluate("{'lr': 1, somewhere.key: 2}")
    assert {key: value.value for key, value in made.entries.items()} == {"lr": 1}
