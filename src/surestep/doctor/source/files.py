"""The files of a project: their source, and what their imports refer to."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

LARGEST = 2**21  # bytes; larger files are data
_LINE_END = re.compile(r"\r\n|\r|\n")  # str.splitlines also splits at form feeds; Python does not


class UnreadableError(Exception):
    """A file cannot be checked; the message says why."""


@dataclass(eq=False)
class SourceFile:
    """A file that was parsed.

    Attributes:
        path: as it was given.
        text: its source; the code cells of a notebook, one after another.
        tree: its syntax tree.
        cells: of a notebook: the first line of each code cell in `text`, with its number.
        digest: of its bytes.
    """

    path: Path
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)
    cells: tuple[tuple[int, int], ...] = ()
    digest: str = ""

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the source, without their ends."""
        return _LINE_END.split(self.text)

    @cached_property
    def names(self) -> frozenset[str]:
        """The attributes and variables that it uses."""
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, (ast.Attribute, ast.Name))]
        return frozenset(n.attr if isinstance(n, ast.Attribute) else n.id for n in nodes)

    @property
    def is_notebook(self) -> bool:
        """Whether its text is that of cells, joined."""
        return self.path.suffix == ".ipynb"

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_END.finditer(self.text))]

    def offset(self, line: int, column: int) -> int:
        """Return how many characters are before a position, which `ast` gives in UTF-8 bytes."""
        return self._starts[line - 1] + _count_characters(self.lines[line - 1], column)

    def mark(self, node: ast.AST) -> tuple[int, int, str]:
        """Return what to mark of a node in its first line, from and to which character; the line.

        What spans several lines is marked to the end of the first.
        """
        line = getattr(node, "lineno", 1)
        text = self.lines[line - 1]
        start = _count_characters(text, getattr(node, "col_offset", 0))
        is_one_line = getattr(node, "end_lineno", None) == line
        end = _count_characters(text, getattr(node, "end_col_offset", 0)) if is_one_line else 0
        return start, max(end or len(text.rstrip()), start + 1), text

    def locate(self, line: int) -> tuple[str, int]:
        """Return the file of a line, with the cell of a notebook, and the line in it."""
        before = [(first, cell) for first, cell in self.cells if first <= line]
        if not before:
            return str(self.path), line
        first, cell = before[-1]
        return f"{self.path}:cell {cell}", line - first + 1


def read_source(path: Path) -> SourceFile:
    """Read and parse a script or a notebook.

    Raises:
        UnreadableError: it is too large, not text, or not Python.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror or error}.") from error
    return parse_source(path, data)


def parse_source(path: Path, data: bytes) -> SourceFile:
    """Parse the bytes of a script or a notebook.

    Raises:
        UnreadableError: they are too many, not text, or not Python.
    """
    if len(data) > LARGEST:
        raise UnreadableError(f"{path} has {len(data):,} bytes; at most {LARGEST:,} are checked.")
    if path.suffix == ".ipynb":
        text, cells = _read_notebook(path, data)
    else:
        text, cells = _decode(path, data), ()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UnreadableError(f"{path}:{error.lineno or 1}: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; too deeply nested
        raise UnreadableError(f"{path} cannot be parsed: {error or 'too deeply nested'}.") from None
    return SourceFile(path, text, tree, cells, digest_of(data))


def digest_of(data: bytes) -> str:
    """Return a digest of the bytes of a file."""
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path: Path) -> str | None:
    """Return a digest of a file; None if there is none, "" if it cannot be read."""
    try:
        if not path.is_file():
            return None
        return digest_of(path.read_bytes()) if path.stat().st_size <= LARGEST else ""
    except OSError:
        return ""


def _count_characters(text: str, offset: int) -> int:
    """Return how many characters are before an offset in UTF-8 bytes, which `ast` counts."""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def _decode(path: Path, data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise UnreadableError(f"{path} is not text in its encoding: {error}.") from None


def _read_notebook(path: Path, data: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Join the code cells; lines that only IPython understands become `pass`."""
    try:
        cells = json.loads(data)["cells"]
        sources = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"{path} is not a notebook: {error}.") from None
    lines: list[str] = []
    starts = []
    for number, source in sources:
        starts.append((len(lines) + 1, number))
        lines.extend(_plain_lines(source))
    return "\n".join(lines) + "\n", tuple(starts)


def _plain_lines(source: str) -> list[str]:
    """Return the lines of a cell, with `pass` instead of what is not Python."""
    nothing = ["pass" for _ in source.splitlines()]
    if source.lstrip().startswith("%%"):  # the whole cell is for another program
        return nothing
    lines = []
    for line in source.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        is_magic = line.lstrip().startswith(("%", "!", "?")) or line.rstrip().endswith("?")
        lines.append(f"{indent}pass" if is_magic else line)
    try:
        ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return nothing  # a notebook runs without it
    return lines


class Project:
    """The files that imports may refer to, each read once.

    Args:
        roots: folders in which modules are looked for, beside that of the importing file.

    Attributes:
        used: digests of the files that were looked for since it was last cleared, by absolute
            path; None for those that do not exist, "" for those that cannot be read.
    """

    def __init__(self, roots: tuple[Path, ...] = ()) -> None:
        self.used: dict[str, str | None] = {}
        self._roots = roots
        self._files: dict[str, SourceFile | None] = {}  # by absolute path
        self._digests: dict[str, str | None] = {}

    def find(self, module: str, level: int, importer: Path) -> SourceFile | None:
        """Return the file of a module; None if it is not of the project.

        Args:
            module: its dotted name; empty for `from . import x`.
            level: number of leading dots.
            importer: the file that imports it.
        """
        relative = Path(*module.split(".")) if module else Path()
        folder = Path(os.path.abspath(importer.parent))
        if level:
            for _ in range(level - 1):
                folder = folder.parent
            return self._load(folder / relative)
        for root in (folder, *self._roots_of(folder, relative.parts[0])):
            if (found := self._load(root / relative)) is not None:
                return found
        return None

    def find_imports(self, file: SourceFile) -> Iterator[SourceFile]:
        """Yield the files of the project that a file imports."""
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Import):
                modules, level = [alias.name for alias in node.names], 0
            elif isinstance(node, ast.ImportFrom):
                start, level = node.module or "", node.level
                below = [f"{start}.{alias.name}".lstrip(".") for alias in node.names]
                modules = [start, *below]
            else:
                continue
            for module in modules:
                if (found := self.find(module, level, file.path)) is not None:
                    yield found

    def _roots_of(self, folder: Path, name: str) -> tuple[Path, ...]:
        """Return where a module is looked for; beside a package, only the package itself is."""
        root = folder
        while self._exists(root / "__init__.py") and root != root.parent:
            root = root.parent
        is_own = root != folder and folder.relative_to(root).parts[0] == name
        return (root, *self._roots) if is_own else self._roots

    def _load(self, module: Path) -> SourceFile | None:
        if not module.name:  # the root of the file system
            return None
        for path in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
            if self._exists(path) and (found := self._parse(path)) is not None:
                return found
        return None

    def _exists(self, path: Path) -> bool:
        """Return whether a file exists; its digest is noted."""
        key = str(path)
        if key not in self._digests:
            self._digests[key] = digest_of_file(path)
        self.used[key] = self._digests[key]
        return self._digests[key] is not None

    def _parse(self, path: Path) -> SourceFile | None:
        key = str(path)
        if key not in self._files:
            try:
                self._add(key, read_source(path))
            except UnreadableError:
                self._files[key], self._digests[key] = None, ""
        self.used[key] = self._digests[key]
        return self._files[key]

    def add(self, file: SourceFile) -> None:
        """Use a file that is read already."""
        self._add(os.path.abspath(file.path), file)

    def _add(self, key: str, file: SourceFile) -> None:
        self._files[key], self._digests[key] = file, file.digest
