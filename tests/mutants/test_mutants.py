"""A mutant is one change of an executed line, and takes effect in the process that applies it."""

import importlib
import json
import sys

import pytest

from tests.mutants.draw import draw, read_planted
from tests.mutants.run import apply, functions_of, import_changed

SOURCE = """
def clip(value, limit):
    if value > limit:
        return limit
    return value

def double(values):
    found = []
    for value in values:
        found.append(value + value)
    return found

def give_up():
    return None
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "to_change.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("to_change")
    del sys.modules["to_change"]


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        (3, {"value > limit -> value >= limit", "if value > limit: -> if not value > limit:"}),
        (5, {"return value -> return None"}),
        (10, {"found.append(value + value) -> pass", "value + value -> value - value"}),
        (14, set()),  # which would be the same
        (2, set()),  # only the statements of a function are changed
    ],
)
def test_changes_of_a_line_are_drawn(tmp_path, module, line, changes):
    path, drawn = tmp_path / "to_change.py", set()
    for seed in range(20):
        drawn |= {f"{m.was} -> {m.now}" for m in draw(tmp_path, {path: frozenset([line])}, 1, seed)}
    assert drawn == changes


def test_applied_mutant_changes_the_function_that_others_hold(tmp_path, module):
    held = module.double
    (mutant,) = draw(tmp_path, {tmp_path / "to_change.py": frozenset([11])}, 1, 0)
    assert held([1, 2]) == [2, 4]
    apply(mutant, tmp_path, functions_of(tmp_path))
    assert held([1, 2]) is None
    assert module.clip(3, 2) == 2


def test_file_that_is_imported_only_within_functions_is_changed_too(tmp_path, monkeypatch):
    path = tmp_path / "src" / "imported_late.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(path.parent)
    importlib.invalidate_caches()
    (mutant,) = draw(tmp_path, {path: frozenset([11])}, 1, 0)
    import_changed([mutant])
    module = sys.modules.pop("imported_late")
    (functions,) = functions_of(tmp_path).values()
    apply(mutant, tmp_path, {str(path): functions})
    assert module.double([1]) is None


def test_planted_mutant_of_several_lines_changes_its_function(tmp_path, module):
    fault = {
        "path": "to_change.py",
        "line": 3,
        "was": "    if value > limit:\n        return limit\n",
    }
    fault["now"] = "    value = 2 * value\n    if value > limit:\n        return 0\n"
    planted = tmp_path / "planted.json"
    planted.write_text(json.dumps([fault]))
    (mutant,) = read_planted(planted, tmp_path)
    apply(mutant, tmp_path, functions_of(tmp_path))
    assert module.clip(3, 2) == 0
    assert module.double([1]) == [2]  # follows the change, on another line
    planted.write_text(json.dumps([fault | {"was": "value"}]))
    with pytest.raises(ValueError, match="contains 8 times: value"):
        read_planted(planted, tmp_path)
