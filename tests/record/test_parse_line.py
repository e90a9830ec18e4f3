"""A line of JSON is parsed as by the strict parser."""

import json
import re

import pytest

from surestep.record.io import parse_json, parse_line

LINES = [
    '{"event": "steps", "loss": [1.5, null, "NaN"], "progress": {"step": 1}, "ok": true}',
    '{"text": "a \\"quoted\\" text: \\u00e4"}',
    '{"a": {"b": ["c", {"d": "e"}]}, "f": "g"}',
    '["x", 1, -2.5e-3]',
    "{}",
]
DAMAGED = [
    '{"a": 1, "a": 2}',
    '{"a" : 1, "a": 2}',
    '{"a": [{"b": "x", "b": "y"}], "c": "z"}',
    '{"a": "x", "a": "y", "b": ["z"]}',
    '{"a": 1e999}',
    '{"a": NaN}',
    '{"a": "\\ud800"}',
    '{"a": ' + "[" * 200 + "]" * 200 + "}",
    '{"a": 1',
    "",
]


@pytest.mark.parametrize("line", LINES)
def test_line_is_parsed_as_by_the_strict_parser(line):
    assert parse_line(line.encode()) == parse_json(line.encode()) == json.loads(line)


@pytest.mark.parametrize("line", DAMAGED)
def test_damaged_line_has_the_error_of_the_strict_parser(line):
    with pytest.raises(ValueError, match=r"\w") as strict:
        parse_json(line.encode())
    with pytest.raises(ValueError, match=f"^{re.escape(str(strict.value))}$"):
        parse_line(line.encode())
