"""What a script stores in a mapping under a name is what it reads there."""

from pathlib import Path

import pytest

from surestep.doctor.source.files import Project, parse_source
from surestep.doctor.source.interpreter import follow
from surestep.doctor.source.values import Constant, Either


def read(*lines):
    """Return what the last line of a function reads, as the doctor knows it."""
    body = "\n".join(f"    {line}" for line in (*lines, "return run['loss']"))
    script = f"def compute(run, is_summed, key):\n{body}\n"
    traces = follow(parse_source(Path("script.py"), script.encode()), Project()).traces
    return next(e.value for trace in traces for e in trace.events if e.kind == "return")


def list_known(value):
    options = value.options if isinstance(value, Either) else (value,)
    return [option.value for option in options if isinstance(option, Constant)]


@pytest.mark.parametrize(
    ("lines", "known"),
    [
        (("run['loss'] = 1",), [1]),
        (("run['loss'] = 1", "run['loss'] = 2"), [2]),
        (("run['loss'] = 1", "other = run['step'] = 2"), [1]),
        (("run = {'loss': 1}", "run['loss'] = 2"), [2]),
    ],
)
def test_last_stored_value_is_read(lines, known):
    value = read(*lines)
    assert not isinstance(value, Either)
    assert list_known(value) == known


def test_value_of_a_branch_may_be_another_one_after_it():
    value = read("run['loss'] = 1", "if is_summed:", "    run['loss'] = 2")
    assert sorted(list_known(value)) == [1, 2]


@pytest.mark.parametrize("lines", [(), ("run['loss'] = 1", "run[key] = 2")])
def test_nothing_is_claimed_of_what_may_be_changed(lines):
    assert list_known(read(*lines)) == []
