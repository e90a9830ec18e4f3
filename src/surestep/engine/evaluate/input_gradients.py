"""Gradients of a score with respect to the inputs of a model: saliency, sensitivity."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.evaluate.evaluate import eval_mode
from surestep.engine.model.forward_writes import ForwardWrites
from surestep.engine.model.preserve import preserve_buffers
from surestep.engine.rng import preserve_torch_rng


def input_gradients(
    model: nn.Module, inputs: Any, score: Callable[[Any], Tensor] | None = None
) -> Any:
    """Return the gradient of a score with respect to the inputs of a model, in eval mode.

    You can call it inside an evaluation or a prediction. It restores the model's modes and buffers,
    the `.grad` of its parameters and torch's generators.

    Args:
        model: the model.
        inputs: a tensor, a tuple of positional or a dict of keyword arguments.
        score: a function of the outputs that returns one number per sample; the default is the sum
            of all outputs. The numbers are summed, since samples are independent in eval mode.

    Returns:
        The structure of `inputs`, with the gradient of each floating-point tensor; None for other
        tensors.

    Raises:
        TaskError: no input is a floating-point tensor, or the score depends on none.
    """
    tensors = flatten_tensors(inputs)
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        eval_mode(model),
        preserve_buffers(model, writes=ForwardWrites(model).slots),
        preserve_torch_rng(device),
    ):
        leaves = map_tensors(inputs, _as_leaf)
        wanted = [tensor for tensor in flatten_tensors(leaves) if tensor.requires_grad]
        if not wanted:
            raise TaskError(
                "No input is a floating-point tensor, and integers have no gradient. Pass the "
                "embeddings, with the part of the model that takes them."
            )
        if isinstance(leaves, Mapping):
            outputs = model(**leaves)
        else:
            outputs = model(*(leaves if isinstance(leaves, tuple) else (leaves,)))
        value = outputs if score is None else score(outputs)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise TaskError(
                "The score does not depend on the inputs. Search for detach(), argmax or no_grad "
                "on the way to it; pass score=lambda outputs: ... if the model returns more than "
                "a tensor."
            )
        found = torch.autograd.grad(value.sum(), wanted, allow_unused=True)
    by_input: dict[int, Any] = {id(x): grad for x, grad in zip(wanted, found, strict=True)}

    def grad_of(x: Tensor) -> Any:
        return by_input.get(id(x))

    return map_tensors(leaves, grad_of)


def _as_leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_() if x.is_floating_point() else x
