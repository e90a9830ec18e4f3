"""The edits that mend a mistake: parts of a file, and what replaces them.

A function returns None where comments, parentheses or the like make an edit uncertain. Then the
finding is reported without one.
"""

from __future__ import annotations

import ast
import re

from surestep.doctor.finding import Edit
from surestep.doctor.source.files import SourceFile

_OPENING = re.compile(r"\(\s*")
_EMPTY = re.compile(r"\(\s*\)")
_CLOSING = re.compile(r"\s*,?\s*\)")


def replace(file: SourceFile, node: ast.AST, text: str) -> Edit:
    """Return the edit that writes something else for an expression."""
    return Edit(*_span(file, node), text)


def insert_before(file: SourceFile, node: ast.AST, text: str) -> Edit:
    """Return the edit that writes something before an expression."""
    start, _ = _span(file, node)
    return Edit(start, start, text)


def insert_after(file: SourceFile, node: ast.AST, text: str) -> Edit:
    """Return the edit that writes something after an expression."""
    _, end = _span(file, node)
    return Edit(end, end, text)


def append_method(file: SourceFile, node: ast.expr, text: str) -> tuple[Edit, ...]:
    """Return the edits that call a method of an expression, in parentheses where it needs them."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return (insert_after(file, node, text),)
    return (insert_before(file, node, "("), insert_after(file, node, f"){text}"))


def insert_argument(file: SourceFile, call: ast.Call, text: str) -> Edit | None:
    """Return the edit that gives a call one more argument, before all others."""
    arguments = _arguments(call)
    _, start = _span(file, call.func)
    _, end = _span(file, call)
    if not arguments:
        is_plain = _EMPTY.fullmatch(file.text, start, end)
        return Edit(start + 1, start + 1, text) if is_plain else None
    first = min(_span(file, argument)[0] for argument in arguments)
    is_plain = _OPENING.fullmatch(file.text, start, first)
    return Edit(first, first, f"{text}, ") if is_plain else None


def append_argument(file: SourceFile, call: ast.Call, text: str) -> Edit | None:
    """Return the edit that gives a call one more argument, after all others."""
    arguments = _arguments(call)
    if not arguments:
        return insert_argument(file, call, text)
    last = max(_span(file, argument)[1] for argument in arguments)
    _, end = _span(file, call)
    return Edit(last, last, f", {text}") if _CLOSING.fullmatch(file.text, last, end) else None


def remove_attribute(file: SourceFile, node: ast.Attribute) -> Edit | None:
    """Return the edit that makes `a` of `a.b`."""
    _, start = _span(file, node.value)
    _, end = _span(file, node)
    is_plain = file.text[start:end] == f".{node.attr}"
    return Edit(start, end, "") if is_plain else None


def _arguments(call: ast.Call) -> list[ast.expr | ast.keyword]:
    return [*call.args, *call.keywords]


def _span(file: SourceFile, node: ast.AST) -> tuple[int, int]:
    """Return where a node starts and ends, in characters of the text."""
    start = file.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]
    return start, file.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
