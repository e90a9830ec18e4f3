"""Notice when the graph of a computation is gone, without keeping it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Container, Iterable
from typing import Any

_MOST_BETWEEN = 6  # nodes
_MOST_NODES = 2000  # of a graph that are searched for a mark


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


def is_marked(node: Any, owner: str, through: Container[str]) -> bool:
    """Return whether a node has something of an owner in its metadata, or one not far behind it.

    Args:
        node: such as `loss.grad_fn`.
        owner: the key in the metadata.
        through: the names, without a number, of the nodes between the two.
    """
    for _ in range(_MOST_BETWEEN):
        if node is None or owner in node.metadata:
            return node is not None
        inputs = [function for function, _ in node.next_functions if function is not None]
        if len(inputs) != 1 or node.name().rstrip("0123456789") not in through:
            return False
        node = inputs[0]
    return False


def take_marks(losses: Iterable[Any], owner: str, *, behind: Container[str]) -> list[Any]:
    """Return what nodes of the graph have in their metadata, and remove it from there.

    Args:
        losses: of a backward pass: tensors, or edges of the graph.
        owner: the key in the metadata.
        behind: the names of nodes behind which nothing is returned, only removed, unless they have
            one-dimensional inputs.
    """
    found, hidden = dict[Any, Any](), set[Any]()
    nodes = (getattr(loss, "grad_fn", getattr(loss, "node", None)) for loss in losses)
    waiting = deque((node, False) for node in nodes)
    seen = set[Any]()
    while waiting and len(seen) < _MOST_NODES:
        node, is_behind = waiting.popleft()
        if node is None or (node, is_behind) in seen:
            continue
        seen.add((node, is_behind))
        if owner in node.metadata:
            found[node] = node.metadata[owner]
            if is_behind:
                hidden.add(node)
        is_behind = is_behind or (node.name() in behind and not _has_one_dimension(node))
        waiting.extend((function, is_behind) for function, _ in node.next_functions)
    for node in found:
        node.metadata.pop(owner)
    return [mark for node, mark in found.items() if node not in hidden]


def _has_one_dimension(node: Any) -> bool:
    return len(getattr(node, "_saved_self_sym_sizes", (0, 0))) == 1


def wants_gradients(inputs: tuple[Any, ...]) -> bool:
    """Return whether an input has gradients, or a function of torch.func is transformed."""
    import torch

    from surestep.doctor import private

    if private.peek_transforms() is not None:
        return True
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
