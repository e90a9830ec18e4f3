"""Decorators and context managers around an event: what they are, and what they call."""

from pathlib import Path

import pytest

from surestep.doctor.check import check_file
from surestep.doctor.rule import load_rules
from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.training import is_without_grad


@pytest.mark.parametrize(
    ("decorator", "is_off"),
    [
        ("@torch.no_grad()", True),
        ("@torch.no_grad", True),
        ("@torch.inference_mode", True),
        ("@torch.compile", False),
        ("", False),
    ],
)
def test_decorator_with_or_without_parentheses_disables_gradients(decorator, is_off):
    script = f"import torch\n{decorator}\ndef evaluate(model, x):\n    print(model(x))\n"
    (trace,) = follow(parse_source(Path("script.py"), script.encode()), Project()).traces[-1:]
    shown = next(e for e in trace.events if e.call is not None and e.call.path == "print")
    assert is_without_grad(shown) is is_off


CLASS = """
class Evaluating:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.model.eval()
        return self.model

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.model.train()

evaluating = Evaluating
"""
GENERATOR = """
from contextlib import contextmanager

@contextmanager
def evaluating(model):
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train()
"""


def trace_calls(*parts):
    """Return the methods and functions that a script calls, in order, and its events."""
    script = "\n".join(("import torch", "model = torch.nn.Linear(4, 2)", *parts))
    trace, *_ = follow(parse_source(Path("script.py"), script.encode()), Project()).traces
    calls = [event for event in trace.events if event.call is not None]
    return [event.call.name for event in calls if event.call.path != "torch.nn.Linear"], calls


@pytest.mark.parametrize("manager", [CLASS, GENERATOR], ids=["class", "generator"])
def test_manager_of_the_script_is_followed_around_the_body(manager):
    body = "with evaluating(model) as found, open('x') as file:\n    file.write(found(1))"
    names, _ = trace_calls(manager, body)
    order = [name for name in names if name not in ("contextmanager", "no_grad")]
    assert order == ["eval", "open", "()", "write", "train"]


def test_body_has_the_contexts_of_its_generator_and_only_its_own_branches():
    script = GENERATOR.replace("    model.eval()", "    if model.training:\n        model.eval()")
    _, calls = trace_calls(script, "with evaluating(model):\n    print(1)", "print(2)")
    inside, outside = (event for event in calls if event.call.name == "print")
    assert (is_without_grad(inside), is_without_grad(outside)) == (True, False)
    assert [event.branches for event in (inside, outside)] == [(), ()]
    assert [event.stack for event in (inside, outside)] == [(), ()]


def test_return_in_the_body_is_of_the_function_around_it():
    function = "def evaluate():\n    with evaluating(model):\n        return print\n"
    names, _ = trace_calls(GENERATOR, function, "evaluate()('x')")
    assert names[-1] == "print"
    names, _ = trace_calls(CLASS, function, "evaluate()('x')")
    assert names[-1] == "print"


NOT_FOLLOWED = [
    "@contextmanager\ndef evaluating(m):\n    yield from helper(m)\n",
    "@contextmanager\ndef evaluating(m):\n    return helper(m)\n",
    "@contextmanager\ndef evaluating(m):\n    if FLAG:\n        with torch.no_grad():\n"
    "            yield m\n    else:\n        yield m\n",
    "@contextmanager\ndef evaluating(m):\n    for _ in range(1):\n        yield m\n",
    "class evaluating:\n    def __init__(self, m):\n        self.grad = torch.no_grad()\n"
    "    def __enter__(self):\n        self.grad.__enter__()\n"
    "    def __exit__(self, *args):\n        self.grad.__exit__(*args)\n",
]


@pytest.mark.parametrize("manager", NOT_FOLLOWED)
def test_body_of_a_manager_that_is_not_followed_is_executed_without_its_contexts(manager):
    helper = "from contextlib import contextmanager\n@contextmanager\ndef helper(m):\n    yield m\n"
    _, calls = trace_calls(helper, manager, "with evaluating(model):\n    print(1)")
    (shown,) = (event for event in calls if event.call.name == "print")
    assert (is_without_grad(shown), shown.branches, shown.loops) == (False, (), ())


def test_asynchronous_manager_is_followed_too():
    manager = CLASS.replace("__enter__", "__aenter__").replace("__exit__", "__aexit__")
    manager = manager.replace("    def __a", "    async def __a")
    body = "async def run():\n    async with evaluating(model):\n        print(1)\nrun()"
    names, _ = trace_calls(manager, body)
    assert names == ["eval", "print", "train"]


def test_manager_that_is_entered_by_another_is_executed_at_its_call():
    names, _ = trace_calls(GENERATOR, "stack.enter_context(evaluating(model))")
    assert names[-4:] == ["eval", "no_grad", "train", "enter_context"]


def test_evaluation_inside_a_manager_that_switches_the_mode_is_right():
    script = f"""
import torch
{GENERATOR}
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for x, y in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with evaluating(model):
        for x, y in val_loader:
            print((model(x).argmax(1) == y).sum().item())
"""

    def find(text):
        rules = [rule for rule in load_rules() if rule.code == "SS402"]
        return check_file(parse_source(Path("train.py"), text.encode()), rules, Project())

    assert find(script) == []
    assert len(find(script.replace("    model.eval()\n", "    model.train()\n"))) == 1
