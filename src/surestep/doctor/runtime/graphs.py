"""Notice when the graph of a computation is gone, without keeping it."""

from __future__ import annotations

import weakref
from typing import Any


class Token:
    """Lives as long as the node of a graph that has it in its metadata."""

    __slots__ = ("__weakref__",)


def attach_token(node: Any, owner: str) -> weakref.ref[Token] | None:
    """Return a reference to a new token in a node; None if it has one already, or is a leaf.

    Args:
        node: such as `loss.grad_fn`. A leaf belongs to a parameter, and not to one graph.
        owner: of the token, such as the code of a rule.
    """
    if node is None or not node.next_functions or owner in node.metadata:
        return None
    token = node.metadata[owner] = Token()
    return weakref.ref(token)
