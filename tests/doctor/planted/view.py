"""A script that is searched for where a mistake fits in, and edited."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.doctor.planted.matching import Bound, build, build_statements, match
from tests.doctor.planted.scripts import Script, become

Edit = Callable[[], object]


@dataclass
class Site:
    """A statement in its block.

    Attributes:
        block: the list of statements.
        node: the statement.
        bound: what the names of the pattern stand for that found it.
        call: the expression that fits the pattern.
        above: the statements around it, innermost last.
    """

    block: list[ast.stmt]
    node: ast.stmt
    bound: Bound
    call: ast.expr
    above: tuple[ast.AST, ...]

    @property
    def index(self) -> int:
        return next(i for i, node in enumerate(self.block) if node is self.node)

    @property
    def loops(self) -> list[ast.For | ast.While]:
        return [node for node in self.above if isinstance(node, (ast.For, ast.While))]

    @property
    def function(self) -> ast.FunctionDef | None:
        found = [node for node in self.above if isinstance(node, ast.FunctionDef)]
        return found[-1] if found else None

    def remove(self) -> None:
        self.block.remove(self.node)
        if not self.block:
            self.block.append(ast.Pass())

    def insert_before(self, template: str, bound: Bound | None = None) -> None:
        made = build_statements(template, bound or self.bound)
        self.block[self.index : self.index] = made

    def insert_after(self, template: str, bound: Bound | None = None) -> None:
        made = build_statements(template, bound or self.bound)
        self.block[self.index + 1 : self.index + 1] = made

    def move_before(self, other: Site) -> None:
        self.remove()
        other.block.insert(other.index, self.node)

    def move_after(self, other: Site) -> None:
        self.remove()
        other.block.insert(other.index + 1, self.node)

    def replace(self, template: str) -> None:
        index = self.index
        self.block[index : index + 1] = build_statements(template, self.bound)

    def text(self, name: str) -> str:
        """Return the source of what a name of the pattern stands for."""
        return ast.unparse(self.bound[name])


class View:
    """Finds expressions and statements of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.trees = script.trees

    @property
    def source(self) -> str:
        return "\n".join(ast.unparse(tree) for tree in self.trees.values())

    def expressions(self, pattern: str) -> Iterator[tuple[ast.expr, Bound]]:
        """Yield the expressions that fit a pattern."""
        for tree in self.trees.values():
            for node in ast.walk(tree):
                bound = match(pattern, node)
                if bound is not None:
                    assert isinstance(node, ast.expr)
                    yield node, bound

    def rewrite(self, pattern: str, template: str) -> Iterator[Edit]:
        """Yield an edit for each expression that fits a pattern."""
        for node, bound in list(self.expressions(pattern)):
            yield lambda node=node, bound=bound: become(node, build(template, bound))

    def statements(self) -> Iterator[Site]:
        """Yield every statement."""
        for tree in self.trees.values():
            yield from statements_of(tree, ())

    def calls(self, pattern: str) -> Iterator[Site]:
        """Yield the simple statements with an expression that fits a pattern."""
        for site in self.statements():
            if isinstance(site.node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return)):
                for node in ast.walk(site.node):
                    bound = match(pattern, node)
                    if bound is not None:
                        assert isinstance(node, ast.expr)
                        yield Site(site.block, site.node, bound, node, site.above)

    def classes(self, *bases: str) -> Iterator[ast.ClassDef]:
        """Yield classes with one of these bases."""
        for site in self.statements():
            if isinstance(site.node, ast.ClassDef):
                names = {ast.unparse(base) for base in site.node.bases}
                if names & set(bases):
                    yield site.node

    def modules(self) -> Iterator[ast.ClassDef]:
        yield from self.classes("torch.nn.Module", "L.LightningModule")

    def named(self, path: str) -> set[str]:
        """Return the names and attributes that are assigned a call of a path, such as a loss."""
        names = set()
        for site in self.calls(f"{path}(*_r, **_k)"):
            if isinstance(site.node, ast.Assign) and site.node.value is site.call:
                names |= {ast.unparse(target) for target in site.node.targets}
        return names

    def losses(self, function: str, module: str) -> Iterator[tuple[Site, ast.Call]]:
        """Yield the calls of a loss, as a function or as an object, in statements."""
        names = self.named(f"torch.nn.{module}")
        for site in self.calls("_f(_a, _b, *_r, **_k)"):
            called = ast.unparse(site.bound["_f"])
            if called == f"torch.nn.functional.{function}" or called in names:
                assert isinstance(site.call, ast.Call)
                yield site, site.call


def statements_of(node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[Site]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(node, name, None)
        if not isinstance(block, list):
            continue
        for child in list(block):
            if isinstance(child, ast.stmt):
                yield Site(block, child, {}, ast.Constant(None), (*above, node))
            yield from statements_of(child, (*above, node))
    for case in getattr(node, "cases", ()):
        yield from statements_of(case, (*above, node))


def method(cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None
