"""Gradients by the inputs of a model, outside of training: saliency, sensitivity.

They stand apart from the step: no parameter gets a gradient and nothing is moved.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.engine.batch import flatten_tensors
from surestep.engine.evaluate.evaluate import eval_mode
from surestep.engine.rng import preserve_torch_rng


def input_gradients(
    model: nn.Module, inputs: Any, score: Callable[[Any], Tensor] | None = None
) -> Any:
    """Return the gradient of a score with respect to the inputs of a model, in eval mode.

    You can call it inside an evaluation or a prediction. It restores the model's modes, the `.grad`
    of its parameters and torch's generators.

    Args:
        model: the model.
        inputs: a tensor, a tuple of positional or a dict of keyword arguments.
        score: a function of the outputs that returns one number per sample; the default is the sum
            of all outputs. The numbers are summed, since samples are independent in eval mode.

    Returns:
        The structure of `inputs`, with the gradient of each floating-point tensor; None for the
        others.

    Raises:
        TaskError: no input is a floating-point tensor, or the score depends on none.
    """
    device = next((each.device for each in flatten_tensors(inputs)), torch.device("cpu"))
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        eval_mode(model),
        preserve_torch_rng(device),
    ):
        asked = _map(inputs, lambda x: x.detach().clone().requires_grad_())
        wanted = [each for each in flatten_tensors(asked) if each.requires_grad]
        if not wanted:
            raise TaskError(
                "No input is a floating point tensor, and whole numbers have no gradient. Ask by "
                "the embeddings: give the part of the model that takes them."
            )
        if isinstance(asked, Mapping):
            outputs = model(**asked)
        else:
            outputs = model(*(asked if isinstance(asked, tuple) else (asked,)))
        value = outputs if score is None else score(outputs)
        if not isinstance(value, Tensor) or not value.requires_grad:
            raise TaskError(
                "The score does not depend on the inputs. Look for detach(), argmax or no_grad on "
                "the way to it; and say score=lambda outputs: ... where the model returns more "
                "than a tensor."
            )
        found = torch.autograd.grad(value.sum(), wanted, allow_unused=True)
    by_input = {id(each): grad for each, grad in zip(wanted, found, strict=True)}
    return _map(asked, lambda x: by_input[id(x)], None)


def _map(value: Any, change: Callable[[Tensor], Any], *other: Any) -> Any:
    """Change the floating point tensors of inputs; the rest stays, or becomes `other`."""
    if isinstance(value, Mapping):
        return {key: _map(each, change, *other) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_map(each, change, *other) for each in value)
    if isinstance(value, Tensor) and value.is_floating_point():
        return change(value)
    return other[0] if other else value
