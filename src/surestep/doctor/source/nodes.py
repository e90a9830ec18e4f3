"""What an expression or a statement of a script says."""

from __future__ import annotations

import ast


def find_names(node: ast.AST, kind: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """Return the names of the variables in an expression or a statement.

    Args:
        node: the expression or the statement.
        kind: `ast.Load` for those that it reads, `ast.Store` for those that it assigns.
    """
    return {
        part.id
        for part in ast.walk(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, kind)
    }


def describe_source(node: ast.AST | None) -> str:
    """Return the source of an expression for a message, shortened; "it" for anything else."""
    if not isinstance(node, ast.expr):
        return "it"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
