"""The operators of Python, and which conditions are known without running a script."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from surestep.doctor.source.values import (
    Call,
    Class,
    Collection,
    Constant,
    Function,
    Instance,
    Operation,
    Value,
)

BUILTINS = frozenset(
    "print float int len sum min max abs range enumerate zip list tuple dict set sorted "
    "reversed isinstance getattr setattr hasattr iter next open map filter any all round type "
    "str repr bool id vars".split()
)
OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.And: "and",
    ast.Or: "or",
    ast.Not: "not",
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Invert: "~",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}

COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">=", "in", "not in", "is", "is not"))


def find_truth(value: Value) -> bool | None:
    """Return whether a condition is true; None if that depends on the run."""
    match value:
        case Constant(value=known):
            return bool(known)
        case Operation(operator="==", operands=(Constant(value=a), Constant(value=b))):
            return bool(a == b)
        case Operation(operator="is", operands=(left, Constant(value=None))):
            return is_none(left)
        case Operation(operator="is not", operands=(left, Constant(value=None))):
            none = is_none(left)
            return None if none is None else not none
        case Operation(operator="not", operands=(inner,)):
            known_inner = find_truth(inner)
            return None if known_inner is None else not known_inner
    return None


def is_none(value: Value) -> bool | None:
    """Return whether a value is None; None if that depends on the run."""
    if isinstance(value, Constant):
        return value.value is None
    return False if isinstance(value, (Instance, Function, Class, Collection)) else None


def find_operations(value: Value) -> Iterator[Operation]:
    """Yield the operations of a value, and those that a call is given."""
    waiting = [value, *(value.inputs if isinstance(value, Call) else ())]
    seen: set[Value] = set()
    while waiting:
        found = waiting.pop()
        if isinstance(found, Operation) and found not in seen:
            seen.add(found)
            yield found
            waiting.extend(found.operands)
