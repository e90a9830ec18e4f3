import ast
import re
from pathlib import Path

import pytest

from surestep.doctor.source.files import LARGEST, Project, UnreadableError, parse_source
from tests.doctor.scripts import notebook


def parse(text, name="a.py"):
    return parse_source(Path(name), text if isinstance(text, bytes) else text.encode())


def mark(text, kind=ast.Call):
    file = parse(text)
    node = next(node for node in ast.walk(file.tree) if isinstance(node, kind))
    start, end, line = file.mark(node)
    return line[start:end]


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("x = f(1) + 2\n", "f(1)"),
        ("'äöü', f(1), '名'\n", "f(1)"),
        ("x = 1\f\ny = f(1)\n", "f(1)"),
        ("x = 1\r\ny = f(1)\r\n", "f(1)"),
        ("f(\n    1,\n)\n", "f("),
        ("f(  # a comment\n1)\n", "f(  # a comment"),
    ],
)
def test_mark_covers_the_node_in_its_first_line(text, marked):
    assert mark(text) == marked


def test_cell_and_line_of_a_notebook_are_found():
    file = parse(notebook("import torch\nx = 1", "%matplotlib inline\ny = 2"), "a.ipynb")
    assert [file.locate(line) for line in (1, 2, 3, 4)] == [
        ("a.ipynb:cell 2", 1),
        ("a.ipynb:cell 2", 2),
        ("a.ipynb:cell 3", 1),
        ("a.ipynb:cell 3", 2),
    ]
    assert file.lines[3] == "y = 2"


@pytest.mark.parametrize("magic", ["%%time", "%%timeit -n 1", "\n%%capture out", "%%time\n%%prun"])
def test_cell_that_is_measured_is_read(magic):
    file = parse(notebook("x = 1", f"{magic}\ny = f(x)\n"), "a.ipynb")
    node = next(node for node in ast.walk(file.tree) if isinstance(node, ast.Call))
    line = magic.count("\n") + 2
    assert file.locate(node.lineno) == ("a.ipynb:cell 3", line)
    assert file.lines[node.lineno - 1] == "y = f(x)"


@pytest.mark.parametrize("magic", ["%%bash", "%%writefile a.py", "%%timing"])
def test_cell_for_another_program_is_skipped(magic):
    file = parse(notebook(f"{magic}\ny = f(x)\n"), "a.ipynb")
    assert file.lines[:2] == ["pass", "pass"]


@pytest.mark.parametrize(
    "cell",
    [
        "print('%d'\n    % f(x))",
        "y = f(x)  # why?",
        "text = 'a\u2028b'\ny = f(x)",
        "y = f(x)\n\n\n",
    ],
)
def test_line_of_a_cell_is_as_python_counts_them(cell):
    file = parse(notebook(cell, "z = 1"), "a.ipynb")
    calls = [node for node in ast.walk(file.tree) if isinstance(node, ast.Name) and node.id == "f"]
    assert [file.locate(call.lineno) for call in calls] == [
        ("a.ipynb:cell 2", cell.rstrip().count("\n") + 1)
    ]
    assert file.locate(len(file.lines) - 1) == ("a.ipynb:cell 3", 1)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "x = (\n", "a.py:1: not checked: '(' was never closed."),
        ("a.py", "print 'x'\n", "a.py:1: not checked: Missing parentheses"),
        ("a.py", b"x = '\xe4'\n", "not text in its encoding"),
        ("a.py", b"# coding: no-such-encoding\n", "not text in its encoding"),
        ("a.py", b"x = 1\0\n", "null bytes"),
        ("a.py", "(" * 5000 + ")" * 5000, "a.py"),
        ("a.py", "x" + ".y" * 200_000, "a.py"),
        ("a.py", b"#" * (LARGEST + 1), "at most"),
        ("a.ipynb", "not json", "a.ipynb is not a notebook: it is not JSON."),
        ("a.ipynb", "[]", "it has no cells as Jupyter writes them."),
        ("a.ipynb", '{"cells": [{"cell_type": "code"}]}', "is not a notebook"),
        ("a.ipynb", "[" * 100_000, "it is not JSON."),
    ],
)
def test_file_that_is_not_a_script_is_unreadable(name, text, message):
    with pytest.raises(UnreadableError) as error:
        parse(text, name)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"\xef\xbb\xbfx = 1\n", b"# coding: latin-1\nx = '\xe4'\n", b"x = 1\r\n"]
)
def test_empty_file_and_declared_encoding_are_read(text):
    assert isinstance(parse(text).tree, ast.Module)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_module_is_found_from_a_folder_that_is_itself_a_package(folder):
    """The folder above a relative path is not found by the path alone."""
    (folder / "__init__.py").touch()
    (folder / "model.py").write_text("x = 1\n")
    project = Project()
    found = project.find(f"{folder.name}.model", 0, Path("train.py"))
    assert found is project.find("model", 1, Path("train.py"))
    assert found.path == folder / "model.py"


def test_module_is_found_from_a_package_without_init(folder):
    inner = folder / "tool" / "parts"
    inner.mkdir(parents=True)
    for path in (folder / "tool" / "base.py", inner / "main.py", folder / "parts.py"):
        path.write_text("x = 1\n")
    found = Project().find("tool.base", 0, inner / "main.py")
    assert found is not None
    assert found.path.name == "base.py"
    assert Project().find("base", 0, inner / "main.py") is None


def test_module_above_a_relative_path_is_found(folder, monkeypatch):
    (folder / "sub").mkdir()
    (folder / "model.py").write_text("x = 1\n")
    monkeypatch.chdir(folder / "sub")
    assert Project().find("model", 2, Path("train.py")).path == folder / "model.py"


def test_files_that_were_looked_for_are_noted_with_their_digests(folder):
    (folder / "model.py").write_text("x = 1\n")
    project = Project()
    project.find("model", 0, Path("train.py"))
    project.find("gone", 0, Path("train.py"))
    used = {
        Path(name).relative_to(folder).as_posix(): digest for name, digest in project.used.items()
    }
    assert used == {
        "__init__.py": None,
        "model.py": parse("x = 1\n").digest,
        "gone.py": None,
        "gone/__init__.py": None,
    }


@pytest.mark.parametrize("text", ["x = 1  # tta\n", "# a\n# TTA\nx = '#'\n", "x = 1  # é # tta"])
def test_pattern_in_a_comment_is_not_in_the_code(text):
    file = parse(text)
    assert not file.contains(re.compile("tta", re.IGNORECASE))


@pytest.mark.parametrize(
    "text", ["tta = 1", "# tta\ntta = 1", "x = '#', 'tta'  # a", "'''\n# tta'''"]
)
def test_pattern_in_the_code_is_found(text):
    assert parse(text).contains(re.compile("tta"))
