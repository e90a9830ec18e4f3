"""The names of variables in a piece of source."""

from __future__ import annotations

import ast


def find_names(node: ast.AST, kind: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the names of the variables in a piece of source.

    Args:
        node: the source.
        kind: `ast.Load` for those that it reads, `ast.Store` for those that it assigns.
    """
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, kind)
    }
