"""The table of exit codes in the docs is that of the code."""

import ast
import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from surestep.base import exit_codes
from surestep.cli.main import COMMANDS, module_of
from surestep.cli.stop import TRAINING

DOCS = Path(__file__).parents[2] / "docs" / "running.md"
CODES = {name: code for name, code in vars(exit_codes).items() if name.isupper()}


def read_section():
    return DOCS.read_text(encoding="utf-8").split("### Exit codes")[1].split("\n## ")[0]


def read_rows():
    """Return the cells of the table by column, for each command in it."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in read_section().splitlines()
        if line.startswith("|")
    ]
    return [
        (command, dict(zip(header[1:], cells[1:], strict=True)))
        for cells in [[cell.strip("| ") for cell in row] for row in rows]
        for command in re.findall(r"`([^`]+)`", cells[0])
    ]


def test_table_has_every_command_once():
    rows = [command for command, _ in read_rows()]
    assert len(set(rows)) == len(rows)
    assert {command.split()[0] for command in rows} == set(COMMANDS)
    parts = import_module("surestep.cli.ckpt")._COMMANDS
    assert {f"ckpt {part}" for part in parts} == {row for row in rows if row.startswith("ckpt")}


def test_row_of_watch_has_every_reason_for_its_own_code():
    cells = dict(read_rows())["watch"]
    for reason in (
        "`--fail-on`: it found something",
        "watching failed",
        "the script failed with 1",
    ):
        assert reason in cells["1"]


def test_every_code_is_in_the_docs():
    in_table = {int(code) for code in read_rows()[0][1]}
    below = {int(code) for code in re.findall(r"^- (\d+):", read_section(), re.MULTILINE)}
    assert in_table | below == set(CODES.values())
    assert exit_codes.STOPPED == os.EX_TEMPFAIL


def test_commands_that_can_be_stopped_are_those_that_train():
    assert {command for command, cells in read_rows() if cells["75"] != "-"} == set(TRAINING)


def returned_codes(tree):
    """Return the numbers and constants that functions of a module return as exit codes."""
    commands = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    commands = (node for node in commands if node.returns and ast.unparse(node.returns) == "int")
    returns = (part for node in commands for part in ast.walk(node) if isinstance(part, ast.Return))
    for leaf in (leaf for part in returns for leaf in ast.walk(part)):
        if isinstance(leaf, ast.Name) and leaf.id in CODES:
            yield CODES[leaf.id]
        if isinstance(leaf, ast.Constant) and type(leaf.value) is int:
            yield leaf.value


@pytest.mark.parametrize("command", COMMANDS)
def test_module_of_a_command_returns_only_documented_codes(command):
    source = Path(import_module(module_of(command)).__file__).read_text(encoding="utf-8")
    documented = {0, 1, 75, 130} if command in TRAINING else {0, 1}
    assert set(returned_codes(ast.parse(source))) <= documented
