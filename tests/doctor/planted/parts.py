"""Parts of a script that the variations look for."""

from __future__ import annotations

import ast

from tests.doctor.planted.matching import match


def all_names(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    definitions = (ast.FunctionDef, ast.ClassDef)
    return names | {node.name for node in ast.walk(tree) if isinstance(node, definitions)}


def first_import(tree: ast.Module) -> int:
    for index, node in enumerate(tree.body):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and node.module != "__future__"
        ):
            return index
    return 1 if ast.get_docstring(tree) is not None else 0


def is_batch_loop(node: ast.AST) -> bool:
    if not isinstance(node, ast.For):
        return False
    inner = match("enumerate(_a, *_r)", node.iter)
    source = ast.unparse(inner["_a"] if inner else node.iter).lower()
    return "(" not in source and any(
        word in source for word in ("loader", "dl", "iter", "dataload")
    )


def is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
