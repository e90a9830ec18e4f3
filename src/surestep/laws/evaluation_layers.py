"""Dropout and BatchNorm as in evaluations: they depend on the micro-batch by design."""

import inspect
from functools import cache
from typing import Any

from torch.overrides import TorchFunctionMode

# Of torch.nn.functional, by name: what a module calls, and a forward without a module.
_TRAINING = {
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("batch_norm", "multi_head_attention_forward"),
}
_ATTENTION, _DROPOUT = "scaled_dot_product_attention", 4  # the position of its dropout


class EvaluationLayers(TorchFunctionMode):
    """Calls dropout and BatchNorm as in evaluation mode, whatever mode the modules have."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in _TRAINING and func.__module__ == "torch.nn.functional":
            bound = _signature(func).bind(*args, **kwargs)
            bound.arguments["training"] = False
            return func(*bound.args, **bound.kwargs)
        if name == _ATTENTION:
            if len(args) > _DROPOUT:
                args = (*args[:_DROPOUT], 0.0, *args[_DROPOUT + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)


@cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)
