"""The functions of torch whose calls a rule can see, by the names that rules use."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from surestep.doctor import private

_LOSSES = (
    *("cross_entropy", "nll_loss", "kl_div", "binary_cross_entropy", "gaussian_nll_loss"),
    *("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss", "poisson_nll_loss"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
    *("cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss"),
)
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
_READS = {
    name: ((Tensor, name),) for name in ("item", "tolist", "cpu", "numpy", "__float__", "__bool__")
}
_COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "gather"),
    *("gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor", "broadcast"),
    *("broadcast_object_list", "all_to_all", "all_to_all_single", "send", "recv"),
    *("batch_isend_irecv", "all_gather_tensor"),  # not `isend`, which torch knows by identity
)


def _list_collectives() -> tuple[tuple[Any, str], ...]:
    """Return the collectives of torch under each of their names; some builds have none."""
    if not torch.distributed.is_available():
        return ()
    from torch.distributed import distributed_c10d

    owners = (torch.distributed, distributed_c10d, private.functional_collectives)
    return tuple((owner, name) for owner in owners for name in _COLLECTIVES if hasattr(owner, name))


# Several functions of one name are one for a rule: softmax may be called in three ways.
FUNCTIONS: dict[str, tuple[tuple[Any, str], ...]] = {
    **{name: ((functional, name),) for name in (*_LOSSES, *_DROPOUTS)},
    **{
        name: ((functional, name), (torch, name), (Tensor, name))
        for name in ("softmax", "log_softmax")
    },
    "scaled_dot_product_attention": ((functional, "scaled_dot_product_attention"),),
    **{
        name: ((torch, name), (Tensor, name))
        for name in ("sigmoid", "log", "sqrt", "argmax", "max", "allclose", "bmm", "matmul")
    },
    "sub": ((torch, "sub"), (Tensor, "sub"), (Tensor, "__sub__")),
    "eq": ((torch, "eq"), (Tensor, "eq"), (Tensor, "__eq__")),
    "grad": ((torch.autograd, "grad"),),
    **{name: ((torch, name),) for name in ("rand", "randn", "randperm")},
    "collective": _list_collectives(),
    "synchronize": ((torch.cuda, "synchronize"),),
    **_READS,
}
# Functions that are written in C++ have no signature, or since torch 2.15 one without names.
_PARAMETERS: dict[str, dict[str, Any]] = {
    "scaled_dot_product_attention": {
        **dict.fromkeys(("query", "key", "value", "attn_mask")),
        **{"dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False},
    },
}
_UNARY = {"input": None, "other": None}


@cache
def read_parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a function with their defaults; None for those without."""
    if not FUNCTIONS[name]:
        return {}
    owner, attribute = FUNCTIONS[name][0]
    function = getattr(owner, attribute)
    if not inspect.isfunction(inspect.unwrap(function)):
        return _PARAMETERS.get(name, _UNARY)
    parameters = inspect.signature(function).parameters.values()
    return {
        parameter.name: None if parameter.default is parameter.empty else parameter.default
        for parameter in parameters
        if parameter.name != "_stacklevel"
    }
