"""Patterns of expressions: `torch.nn.functional.mse_loss(_a, _b, **_k)`.

`_a` stands for any expression, `*_r` for any further arguments, and `**_k` for any keywords.
"""

from __future__ import annotations

import ast
import copy
from functools import cache
from typing import Any

Bound = dict[str, Any]


@cache
def parse_pattern(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def match(pattern: str, node: ast.AST) -> Bound | None:
    """Return what the names of a pattern stand for, or None if it does not fit."""
    bound: Bound = {}
    return bound if fits(parse_pattern(pattern), node, bound) else None


def is_wildcard(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name) and node.id.startswith("_") and not node.id.startswith("__")


def fits(pattern: Any, node: Any, bound: Bound) -> bool:
    if isinstance(pattern, ast.AST) and is_wildcard(pattern):
        name = pattern.id  # type: ignore[attr-defined]
        if name == "_":
            return isinstance(node, ast.expr)
        if name in bound:
            return ast.dump(bound[name]) == ast.dump(node)
        bound[name] = node
        return isinstance(node, ast.expr)
    if isinstance(pattern, ast.Call):
        return isinstance(node, ast.Call) and fits_call(pattern, node, bound)
    if isinstance(pattern, ast.AST):
        return type(pattern) is type(node) and all(
            name == "ctx" or fits(getattr(pattern, name), getattr(node, name), bound)
            for name in pattern._fields
        )
    if isinstance(pattern, list):
        return len(pattern) == len(node) and all(map(fits, pattern, node, [bound] * len(node)))
    return bool(pattern == node)


def fits_call(pattern: ast.Call, node: ast.Call, bound: Bound) -> bool:
    args = list(pattern.args)
    rest = args.pop() if args and isinstance(args[-1], ast.Starred) else None
    if (rest is None and len(args) != len(node.args)) or len(args) > len(node.args):
        return False
    named = {k.arg: k for k in pattern.keywords if k.arg}
    others = [k for k in node.keywords if k.arg not in named]
    open_ended = [k.value for k in pattern.keywords if k.arg is None]
    if (others and not open_ended) or len(named) + len(others) != len(node.keywords):
        return False
    if rest is not None:
        bound[rest.value.id] = node.args[len(args) :]
    for name in open_ended:
        bound[name.id] = others
    return (
        fits(pattern.func, node.func, bound)
        and all(fits(a, b, bound) for a, b in zip(args, node.args, strict=False))
        and all(fits(named[k.arg].value, k.value, bound) for k in node.keywords if k.arg in named)
    )


def build(template: str, bound: Bound) -> ast.expr:
    """Return an expression with what the names of a template stand for."""
    expression = Filler(bound).visit(copy.deepcopy(parse_pattern(template)))
    assert isinstance(expression, ast.expr)
    return expression


def build_statements(template: str, bound: Bound | None = None) -> list[ast.stmt]:
    filler = Filler(bound or {})
    return [filler.visit(node) for node in ast.parse(template).body]


class Filler(ast.NodeTransformer):
    def __init__(self, bound: Bound) -> None:
        self.bound = bound

    def visit_Name(self, node: ast.Name) -> ast.AST:
        made = self.bound.get(node.id)
        if not isinstance(made, ast.AST):
            return node
        made = copy.deepcopy(made)
        if hasattr(made, "ctx"):
            made.ctx = node.ctx
        return made

    def visit_Call(self, node: ast.Call) -> ast.AST:
        args: list[ast.expr] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Name):
                listed = self.bound.get(arg.value.id)
                if isinstance(listed, list):
                    args += copy.deepcopy(listed)
                    continue
            args.append(arg)
        keywords: list[ast.keyword] = []
        for keyword in node.keywords:
            if keyword.arg is None and isinstance(keyword.value, ast.Name):
                listed = self.bound.get(keyword.value.id)
                if isinstance(listed, list):
                    keywords += copy.deepcopy(listed)
                    continue
            keywords.append(keyword)
        node.args, node.keywords = args, keywords
        return self.generic_visit(node)
