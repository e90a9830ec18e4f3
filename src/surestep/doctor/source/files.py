"""The files of a project: their source, and what their imports refer to."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

LARGEST = 2**21  # bytes; larger files are data
_MOST_FOLDERS = 4  # around a package, or a script, that may be packages without `__init__.py`
_RUNS_CELL = re.compile(r"\s*%%(time|timeit|capture|prun|memit)\b")  # as Python
_ASKS_FOR_HELP = re.compile(r"\s*[\w.*]+\?{1,2}\s*")  # `torch.nn.Linear?`
_ASSIGNS_OUTPUT = re.compile(r"\s*[\w, ]+=\s*[!%]")  # `files = !ls`
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
        notes: which cells are not Python, one sentence for each.
        digest: of its bytes.
    """

    path: Path
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)
    cells: tuple[tuple[int, int], ...] = ()
    digest: str = ""
    notes: tuple[str, ...] = ()

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the source, without their ends."""
        return _LINE_END.split(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def names(self) -> frozenset[str]:
        """The attributes and variables that it uses."""
        nodes = [n for n in self.nodes if isinstance(n, (ast.Attribute, ast.Name))]
        return frozenset(n.attr if isinstance(n, ast.Attribute) else n.id for n in nodes)

    @cached_property
    def _lower(self) -> str:
        return self.text.lower()

    @cached_property
    def _contained(self) -> dict[re.Pattern[str], bool]:
        return {}

    def contains(self, pattern: re.Pattern[str]) -> bool:
        """Return whether its source contains a pattern that does not start in a comment.

        Each is searched for once. A pattern that ignores case is written in lower case: so it is
        found four times as fast.
        """
        if pattern not in self._contained:
            ignores_case = pattern.flags & re.IGNORECASE
            found = (
                re.finditer(pattern.pattern, self._lower)
                if ignores_case
                else pattern.finditer(self.text)
            )
            self._contained[pattern] = not all(self._is_comment(match.start()) for match in found)
        return self._contained[pattern]

    def _is_comment(self, position: int) -> bool:
        line = bisect_right(self._starts, position)
        start = self._starts[line - 1]
        if "#" not in self.text[start : position + 1]:  # reading the comments takes long
            return False
        return line in self._comments and start + self._comments[line] <= position

    @cached_property
    def _comments(self) -> dict[int, int]:
        """The columns of the comments, by their lines."""
        lines = iter(f"{line}\n" for line in self.lines)
        try:
            tokens = list(tokenize.generate_tokens(lambda: next(lines, "")))
        except (tokenize.TokenError, SyntaxError):  # ast reads some files that tokenize does not
            return {}
        return dict(token.start for token in tokens if token.type == tokenize.COMMENT)

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
        text, cells, notes = _read_notebook(path, data)
    else:
        text, cells, notes = _decode(path, data), (), ()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        line = error.lineno or 1
        raise UnreadableError(f"{path}:{line}: not checked: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; too deeply nested
        reason = str(error) or "too deeply nested"
        raise UnreadableError(f"{path} cannot be parsed: {reason}.") from None
    return SourceFile(path, text, tree, cells, digest_of(data), notes)


def digest_of(data: bytes) -> str:
    """Return a digest of the bytes of a file."""
    return hashlib.sha256(data).hexdigest()


def digest_of_file(path: str) -> str | None:
    """Return a digest of a file; None if there is none, "" if it cannot be read."""
    if not os.path.isfile(path):
        return None
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError:
        return ""
    return digest_of(data) if len(data) <= LARGEST else ""


def _count_characters(text: str, offset: int) -> int:
    """Return how many characters are before an offset in UTF-8 bytes, which `ast` counts."""
    return offset if text.isascii() else len(text.encode()[:offset].decode(errors="ignore"))


def _decode(path: Path, data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise UnreadableError(f"{path} is not text in its encoding: {error}.") from None


def _read_notebook(
    path: Path, data: bytes
) -> tuple[str, tuple[tuple[int, int], ...], tuple[str, ...]]:
    """Join the code cells; lines that only IPython understands become `pass`.

    Returns:
        The source, the first line of each cell with its number, and which cells are not Python.
    """
    try:
        cells = json.loads(data)["cells"]
        sources = [
            (number, "".join(cell["source"]))
            for number, cell in enumerate(cells, 1)
            if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        is_json = not isinstance(error, (ValueError, RecursionError))
        reason = "it has no cells as Jupyter writes them" if is_json else "it is not JSON"
        raise UnreadableError(f"{path} is not a notebook: {reason}.") from None
    lines: list[str] = []
    starts, notes = [], []
    for number, source in sources:
        starts.append((len(lines) + 1, number))
        plain, reason = _plain_lines(source)
        lines.extend(plain)
        if reason:
            notes.append(f"{path}:cell {number}: not checked: {reason}.")
    return "\n".join(lines) + "\n", tuple(starts), tuple(notes)


def _plain_lines(source: str) -> tuple[list[str], str]:
    """Return the lines of a cell, with `pass` instead of what is not Python.

    The second value is why a cell that should be Python is not; "" if it is.
    """
    lines = _LINE_END.split(source.rstrip())
    nothing, reason = ["pass"] * len(lines), ""
    if source.lstrip().startswith("%%"):
        if not _RUNS_CELL.match(source):  # the whole cell is for another program
            return nothing, ""
        first = next(index for index, line in enumerate(lines) if line.strip())
        lines[first] = ""
    for plain in (lines, [_skip_magic(line) for line in lines]):
        try:
            ast.parse("\n".join(plain))
            return plain, ""
        except SyntaxError as error:
            reason = f"{error.msg} in line {error.lineno}"
        except (ValueError, RecursionError, MemoryError) as error:
            reason = str(error) or "too deeply nested"
    return nothing, reason  # a notebook runs without it


def _skip_magic(line: str) -> str:
    """Return a line, or `pass` if only IPython understands it."""
    indent = line[: len(line) - len(line.lstrip())]
    starts = line.lstrip().startswith(("%", "!", "?"))
    is_magic = starts or _ASKS_FOR_HELP.fullmatch(line) or _ASSIGNS_OUTPUT.match(line)
    return f"{indent}pass" if is_magic else line


class Project:
    """The files that imports may refer to, each read once.

    Attributes:
        used: digests of the files that were looked for since it was last cleared, by absolute
            path; None for those that do not exist, "" for those that cannot be read.
    """

    def __init__(self) -> None:
        self.used: dict[str, str | None] = {}
        self._files: dict[str, SourceFile | None] = {}  # by absolute path
        self._digests: dict[str, str | None] = {}

    def find(self, module: str, level: int, importer: Path) -> SourceFile | None:
        """Return the file of a module; None if it is not of the project.

        Args:
            module: its dotted name; empty for `from . import x`.
            level: number of leading dots.
            importer: the file that imports it.
        """
        # Strings: a project has many names to look for, and to build a Path takes long.
        parts = module.split(".") if module else []
        folder = os.path.abspath(importer.parent)
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._load(os.path.join(folder, *parts))
        for root in (folder, *self._roots_of(folder, parts[0])):
            if (found := self._load(os.path.join(root, *parts))) is not None:
                return found
        return None

    def find_imports(self, file: SourceFile) -> Iterator[SourceFile]:
        """Yield the files of the project that a file imports."""
        for node in file.nodes:
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

    def _roots_of(self, folder: str, name: str) -> tuple[str, ...]:
        """Return where a module is looked for; beside a package, only the package itself is.

        A package may have no `__init__.py`: then a folder of its name around the importer is it.
        """
        root, inner = folder, ""
        while self._exists(os.path.join(root, "__init__.py")) and root != os.path.dirname(root):
            root, inner = os.path.split(root)
        for _ in range(_MOST_FOLDERS):
            if inner == name:
                return (root,)
            root, inner = os.path.split(root)
        return ()

    def _load(self, module: str) -> SourceFile | None:
        if not os.path.basename(module):  # the root of the file system
            return None
        for path in (f"{module}.py", os.path.join(module, "__init__.py")):
            if self._exists(path) and (found := self._parse(path)) is not None:
                return found
        return None

    def _exists(self, path: str) -> bool:
        """Return whether a file exists; its digest is noted."""
        if path not in self._digests:
            self._digests[path] = digest_of_file(path)
        self.used[path] = self._digests[path]
        return self._digests[path] is not None

    def _parse(self, path: str) -> SourceFile | None:
        if path not in self._files:
            try:
                self._add(path, read_source(Path(path)))
            except UnreadableError:
                self._files[path], self._digests[path] = None, ""
        self.used[path] = self._digests[path]
        return self._files[path]

    def add(self, file: SourceFile) -> None:
        """Use a file that is read already."""
        self._add(os.path.abspath(file.path), file)

    def read(self, path: Path) -> SourceFile:
        """Read a file, unless another one has imported it.

        Raises:
            UnreadableError: it is too large, not text, or not Python.
        """
        found = self._files.get(os.path.abspath(path))
        if found is None:
            return read_source(path)
        shown = copy(found)  # what is known of its tree is kept
        shown.path = path
        return shown

    def _add(self, key: str, file: SourceFile) -> None:
        self._files[key], self._digests[key] = file, file.digest
