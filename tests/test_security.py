"""Each line of the tables in SECURITY.md names tests that exist, and each command has a line."""

import ast
import re
from pathlib import Path

from surestep.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
LINES = [line for line in TEXT.splitlines() if re.match(r"\| (?!.*\| test \|)", line)]
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def list_tests(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_line_names_a_test_that_exists():
    assert len(LINES) > 30
    for line in LINES:
        named = TEST.findall(line.rpartition("| ")[2])
        assert named, line
        for path, name in named:
            assert name in list_tests(path), line


def test_every_command_has_a_line():
    named = set(re.findall(r"`([a-z-]+)`", " ".join(line.split("|")[1] for line in LINES)))
    assert COMMANDS.keys() <= named, COMMANDS.keys() - named
