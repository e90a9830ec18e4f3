"""Whether more is done with an attribute of an object than the class of the object shows."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.values import Attribute, Call, Class, Instance, Value, walk

_DYNAMIC = frozenset(  # ways to an attribute without its name
    "globals locals vars getattr setattr attrgetter methodcaller eval exec __dict__ "
    "__getattribute__ get_objects".split()
)
_MOST_PARTS = 100  # of a value


def is_attribute_used(stored: Event, program: Program, reads: frozenset[str]) -> bool:
    """Return whether a value in `self.name` may be used for more than to read from it.

    Args:
        stored: the assignment to the attribute.
        program: that is searched.
        reads: the names of its attributes and methods that only read from it.
    """
    target, owner = stored.target, stored.base
    if not isinstance(target, ast.Attribute) or not isinstance(owner, Instance):
        return True
    return (
        _is_open(owner.cls.definition)
        or _is_mentioned(target.attr, program, reads)
        or _is_given_away(stored, owner.cls, program, reads)
    )


def _is_open(definition: ast.ClassDef) -> bool:
    """Return whether code outside of a class may take part in what it does."""
    derives = any(getattr(base, "id", "") != "object" for base in definition.bases)
    if derives or definition.keywords or definition.decorator_list:
        return True
    nodes = list(ast.walk(definition))
    bases = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id == "self" and node not in bases:
            return True  # the object is passed on
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_empty(node):
            return True  # others override it
    return False


def _is_empty(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(
        isinstance(line, ast.Pass | ast.Raise)
        or (isinstance(line, ast.Return) and line.value is None)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in function.body
    )


def _is_mentioned(name: str, program: Program, reads: frozenset[str]) -> bool:
    """Return whether an attribute of this name is used, or any attribute in a dynamic way."""
    nodes = [node for file in program.files for node in ast.walk(file.tree)]
    ignored = find_reads(nodes, reads)
    for node in nodes:
        if isinstance(node, ast.Attribute):
            is_load = isinstance(node.ctx, ast.Load) and node not in ignored
            if node.attr in _DYNAMIC or (node.attr == name and is_load):
                return True
        elif isinstance(node, ast.Name) and node.id in _DYNAMIC:
            return True
    return False


def find_reads(nodes: Iterable[ast.AST], reads: frozenset[str]) -> set[ast.expr]:
    """Return the expressions that are only read from, by the names of attributes in `reads`."""
    found: set[ast.expr] = set()
    for node in nodes:
        match node:
            case ast.Attribute(ctx=ast.Load(), attr=name, value=value) if name in reads:
                found.add(value)
            case ast.Expr(value=ast.Attribute(value=value)):  # `scheduler.step` without a call
                found.add(value)
    return found


def _is_given_away(stored: Event, cls: Class, program: Program, reads: frozenset[str]) -> bool:
    """Return whether something else gets the value of an attribute, or the object that has it."""

    def is_read(part: Value) -> bool:
        # What is read from an object is not the object.
        return isinstance(part, Attribute) or (isinstance(part, Call) and part.name in reads)

    for event in program.events:
        call = event.call
        given = (event.value,) if call is None else call.arguments
        is_assigned = event.kind != "store" or event.target is not stored.target
        for value in given:
            parts = list(walk(value, _MOST_PARTS, stop_at=is_read))
            has_value = is_assigned and any(part is stored.value for part in parts)
            has_owner = any(isinstance(part, Instance) and part.cls is cls for part in parts)
            if has_value or (call is not None and has_owner):
                return True
        if call is not None and call.receiver is stored.value and call.name not in reads:
            return True
    return False
