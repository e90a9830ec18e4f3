"""Find which operation computed a tensor, from its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

# Operations that keep the values, or some of them, and may change their order or precision.
_RESHAPES = frozenset(
    (
        *("View", "UnsafeView", "Reshape", "ReshapeAlias", "Unflatten", "Expand", "Unsafe"),
        *("Transpose", "T", "Permute", "Movedim", "Swapaxes", "Squeeze", "Unsqueeze", "Alias"),
        *("Clone", "ToCopy", "Contiguous", "ToDevice"),
    )
)
_SELECTIONS = frozenset(("Slice", "Select", "Index", "IndexSelect", "Narrow", "Split", "Unbind"))
_MOST = 10  # such operations in a row
_MOST_NODES = 200  # of a graph whose leaves are wanted

PROBABILITIES = ("Softmax", "Sigmoid")
# What is trained before an activation: its results have no limits.
LINEAR = (
    *("Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Convolution", "MkldnnConvolution"),
    *("MkldnnRnnLayer", "CudnnRnn", "ThnnFusedLstmCell", "ThnnFusedGruCell"),
)


def find_origin(tensor: Tensor, keeps_all: bool = False) -> Any:
    """Return the node of the graph that computed the values of a tensor; None without a graph.

    Nodes that change the shape, the order or the precision are passed.

    Args:
        tensor: whose values.
        keeps_all: stop at a node that selects some of the values.
    """
    return skip_reshapes(tensor.grad_fn, keeps_all)


def skip_reshapes(node: Any, keeps_all: bool = False) -> Any:
    """Return the node that computed the values of a node, as `find_origin` does."""
    for _ in range(_MOST):
        if node is None or not node.next_functions:
            break
        name = name_node(node)
        if name == "Add" and _is_bias(node.next_functions[-1][0]):
            product = skip_reshapes(node.next_functions[0][0])
            return product if product is not None and name_node(product) in LINEAR else node
        if name not in _RESHAPES and (keeps_all or name not in _SELECTIONS):
            break
        node = node.next_functions[0][0]
    return node


def _is_bias(node: Any) -> bool:
    """Return whether a node is a parameter of one dimension."""
    variable = getattr(node, "variable", None)
    return variable is not None and variable.dim() == 1


def name_origin(tensor: Tensor, keeps_all: bool = False) -> str:
    """Return the operation that computed the values of a tensor: "Softmax"; "" without a graph."""
    node = find_origin(tensor, keeps_all)
    return "" if node is None else name_node(node)


def name_node(node: Any) -> str:
    """Return "Softmax" for a node of the name SoftmaxBackward0."""
    name: str = node.name()
    return name.rpartition("Backward")[0]


def read_dim(softmax: Any) -> int:
    """Return the dimension over which the node of a softmax normalised."""
    dim: int = softmax._saved_dim
    return dim - 2**64 if dim >= 2**63 else dim  # it is stored as an unsigned number


def find_leaves(tensor: Tensor) -> list[Tensor]:
    """Return the leaves of a graph, without parameters, in the part next to a tensor."""
    from torch.nn import Parameter

    found: list[Tensor] = []
    seen: set[Any] = set()
    waiting: list[Any] = [tensor.grad_fn]
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not isinstance(leaf, Parameter):
            found.append(leaf)
        waiting += [entry for entry, _ in node.next_functions]
    return found
