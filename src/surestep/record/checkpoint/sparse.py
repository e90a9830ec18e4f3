"""Sparse tensors in a checkpoint, which holds dense ones: as their indices and values.

The values of a sparse tensor are "NAME/$values", its indices "NAME/$indices" or such, and
`{"$sparse": LAYOUT, "size": [...]}` is the extra state of that name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_SPARSE = "$sparse"
_COMPRESSED = {  # the methods that return the two kinds of indices
    "sparse_csr": ("crow_indices", "col_indices"),
    "sparse_bsr": ("crow_indices", "col_indices"),
    "sparse_csc": ("ccol_indices", "row_indices"),
    "sparse_bsc": ("ccol_indices", "row_indices"),
}
_INDICES = {"sparse_coo": ("indices",), **_COMPRESSED}


def is_sparse(tensor: Tensor) -> bool:
    """Say whether a tensor is of a layout that `take_apart` knows."""
    return layout_of(tensor) in _INDICES


def layout_of(tensor: Tensor) -> str:
    """Return the layout of a tensor in torch's word, such as "strided"."""
    return str(tensor.layout).removeprefix("torch.")


def take_apart(name: str, tensor: Tensor) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the dense tensors of a sparse one, by name, and what else there is to it."""
    layout = layout_of(tensor)
    plain = tensor.detach().coalesce() if layout == "sparse_coo" else tensor.detach()
    parts = {f"{name}/${each}": getattr(plain, each)() for each in (*_INDICES[layout], "values")}
    return parts, {_SPARSE: layout, "size": list(plain.shape)}


def put_together(
    tensors: dict[str, Tensor], extra: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors with the sparse ones among them, and the extra state without them.

    Raises:
        ValueError: a part is missing, or the parts make no tensor.
    """
    found, rest = dict(tensors), {}
    for name, about in extra.items():
        if not (isinstance(about, dict) and about.keys() == {_SPARSE, "size"}):
            rest[name] = about
            continue
        layout = about[_SPARSE]
        try:
            parts = [found.pop(f"{name}/${each}") for each in (*_INDICES[layout], "values")]
            make: Any = torch.sparse_coo_tensor
            if layout in _COMPRESSED:
                make = getattr(torch, f"{layout}_tensor")
            found[name] = make(*parts, size=about["size"], check_invariants=True)
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"the sparse tensor {name} cannot be put together: {error}") from error
    return found, rest
