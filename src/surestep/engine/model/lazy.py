"""Lazy modules, whose parameters have no shape before the first forward."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from surestep.base.errors import TaskError
from surestep.engine.batch import MicroBatch, move
from surestep.engine.model.attributes import preserve_attributes
from surestep.engine.model.forward_errors import explain_forward
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.modes import preserve_modes, preserve_weights


def lazy_names(model: nn.Module) -> list[str]:
    """List the parameters and buffers that have no shape yet."""
    named = (*model.named_parameters(), *model.named_buffers())
    return [name for name, tensor in named if is_lazy(tensor)]


def initialize_lazy(model: nn.Module, micro: MicroBatch) -> None:
    """Give lazy parameters their shapes and first values, by a forward in eval mode.

    Raises:
        TaskError: the forward fails, or leaves some without a shape.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    args, kwargs = move((tuple(micro.args), dict(micro.kwargs)), device)
    names = lazy_names(model)
    try:
        with (
            preserve_weights(model),
            preserve_buffers(model),
            ForwardWrites(model).compare(),
            preserve_attributes(model),
            preserve_modes(model.modules()),
            torch.no_grad(),
        ):
            model.eval()
            model(*args, **kwargs)
    except Exception as error:  # the forward is the user's, and may raise anything
        moved = micro._replace(args=args, kwargs=kwargs)
        raise TaskError(
            f"The model has lazy modules ({', '.join(names[:3])}), which its first forward "
            f"initializes, and that fails: {type(error).__name__}: "
            f"{explain_forward(error, model, moved)}"
        ) from error
    if left := lazy_names(model):
        raise TaskError(
            f"The forward of the first batch leaves {', '.join(left[:3])} without a shape. Use "
            "every lazy module in forward, or replace it by one of a fixed size."
        )
