"""The layout of ejected code: imports, calls and statements as ruff formats them."""

import io
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from surestep.eject.source import ImportedName, Statement

WIDTH = 100


def format_imports(imports: Mapping[str, ImportedName]) -> str:
    """Return import statements in the order of isort: the standard library first."""
    found = sorted(imports.items(), key=lambda item: _section_of(item[1]))
    sections = [dict(items) for _, items in groupby(found, lambda item: _section_of(item[1]))]
    return "\n\n".join("\n".join(_import_lines(section)) for section in sections)


def _section_of(found: ImportedName) -> int:
    top = found.module.partition(".")[0]
    if top == "__future__":
        return 0
    return 1 if top in sys.stdlib_module_names else 2


def _import_lines(section: Mapping[str, ImportedName]) -> Iterator[str]:
    """Yield the imports of whole modules, then those of names from modules."""
    for bound, found in sorted(
        section.items(), key=lambda item: (item[1].module, item[0] != item[1].module)
    ):
        if not found.name:
            is_top = found.module.partition(".")[0] == bound
            yield f"import {found.module}" + ("" if is_top else f" as {bound}")
    modules: dict[str, list[str]] = {}
    for bound, found in section.items():
        if found.name:
            text = found.name if bound == found.name else f"{found.name} as {bound}"
            modules.setdefault(found.module, []).append(text)
    for module, names in sorted(modules.items()):
        names.sort(key=lambda name: (_kind_of(name), name))
        line = f"from {module} import {', '.join(names)}"
        yield line if len(line) <= WIDTH else _explode(f"from {module} import ", names)


def _kind_of(name: str) -> int:
    """Return the rank of constants, classes and other names in an import."""
    if name.isupper() and len(name) > 1:
        return 0
    return 1 if name[:1].isupper() else 2


def format_call(function: str, arguments: Sequence[str], *, depth: int = 0, start: str = "") -> str:
    """Return a call, in one line if it fits.

    Args:
        function: what is called.
        arguments: the source of each; one of several lines has those indented for a call that has
            one argument on each line.
        depth: of the statement, in columns.
        start: of the line, such as "return ".
    """
    line = f"{' ' * depth}{start}{function}({', '.join(arguments)})"
    if len(line) <= WIDTH and "\n" not in line:
        return line
    return _explode(f"{' ' * depth}{start}{function}", arguments, depth)


def _explode(start: str, members: Sequence[str], depth: int = 0) -> str:
    inner = " " * (depth + 4)
    lines = [f"{inner}{member}," for member in members]
    return "\n".join([f"{start}(", *lines, f"{' ' * depth})"])


def format_tuple(members: Sequence[str], *, depth: int = 0, exploded: bool = False) -> str:
    """Return a tuple, in one line if it fits.

    Args:
        members: the source of each.
        depth: of its line, in columns.
        exploded: give each member its own line in any case.
    """
    line = f"({', '.join(members)}{',' if len(members) == 1 else ''})"
    if exploded or "\n" in line or depth + len(line) >= WIDTH:
        return _explode("", members, depth)
    return line


def join_statements(statements: Iterable[Statement]) -> str:
    """Return statements one after another: two blank lines around functions and classes."""
    text, before = "", None
    for one in statements:
        if before is not None:
            text += "\n\n\n" if one.is_block or before.is_block else "\n"
        text, before = text + one.text, one
    return text


def remove_comments(text: str) -> str:
    """Return Python code without its comments; docstrings stay."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() or "\0"
    return "".join(f"{line}\n" for line in lines if line != "\0")
