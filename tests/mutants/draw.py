"""Draw or read mutants: one small change of one executed line of the package."""

import ast
import copy
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In},
}
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv},
}


class Mutant(NamedTuple):
    """A changed node: where it is, what it was, and the code of the file with the change."""

    path: str
    line: int
    was: str
    now: str
    code: CodeType


def changed(node: ast.AST) -> ast.AST | None:
    """Return a changed copy of a node, or None if nothing of it can be changed."""
    node = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[kind]) if type(kind) in COMPARISONS:
            node.ops = [COMPARISONS[type(kind)]()]
        case ast.BinOp(op=kind) if type(kind) in OPERATIONS:
            node.op = OPERATIONS[type(kind)]()
        case ast.BoolOp(op=kind):
            node.op = ast.Or() if isinstance(kind, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.Constant(value=bool() as value):
            node.value = not value
        case ast.Constant(value=int() as value):
            node.value = value + 1
        case ast.If(test=test) | ast.IfExp(test=test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return ast.Pass()
        case ast.Return(value=ast.expr()):
            node.value = ast.Constant(None)
        case _:
            return None
    return node


def mutants_of(path: Path, root: Path, lines: frozenset[int]) -> Iterator[Mutant]:
    """Yield each mutant of a file whose changed node starts on one of the lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
        for node in ast.walk(statement)
    }
    for parent in ast.walk(tree):
        for field, value in list(ast.iter_fields(parent)):
            nodes = value if isinstance(value, list) else [value]
            for index, node in enumerate(nodes):
                if id(node) not in inside or getattr(node, "lineno", None) not in lines:
                    continue
                other = changed(node)
                if other is None or ast.dump(other) == ast.dump(node):
                    continue
                nodes[index] = ast.fix_missing_locations(ast.copy_location(other, node))
                setattr(parent, field, value if isinstance(value, list) else other)
                code = compile(tree, str(path), "exec", dont_inherit=True)
                nodes[index] = node
                setattr(parent, field, value if isinstance(value, list) else node)
                was, now = (ast.unparse(each).split("\n")[0] for each in (node, other))
                yield Mutant(str(path.relative_to(root)), node.lineno, was, now, code)


def read_planted(file: Path, root: Path) -> list[Mutant]:
    """Return mutants from a JSON list of `path`, `line`, `was` and `now`, texts inside a function.

    Raises ValueError if a file does not contain `was` exactly once.
    """
    planted = []
    for fault in json.loads(file.read_text(encoding="utf-8")):
        path, was, now = root / fault["path"], fault["was"], fault["now"]
        text = path.read_text(encoding="utf-8")
        if text.count(was) != 1:
            raise ValueError(f"{fault['path']} contains {text.count(was)} times: {was}")
        code = compile(text.replace(was, now), str(path), "exec", dont_inherit=True)
        planted.append(Mutant(fault["path"], fault["line"], was, now, code))
    return planted


def draw(
    root: Path, executed: Mapping[Path, frozenset[int]], count: int, seed: int
) -> list[Mutant]:
    """Return mutants of executed lines; each line of each file is as likely as any other."""
    generator = random.Random(seed)
    places = sorted((path, line) for path, lines in executed.items() for line in lines)
    generator.shuffle(places)
    drawn: list[Mutant] = []
    for path, line in places:
        found = list(mutants_of(path, root, frozenset([line])))
        if found:
            drawn.append(generator.choice(found))
        if len(drawn) == count:
            break
    return drawn
