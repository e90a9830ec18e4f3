"""Errors of a forward: which module, what it got, and how to convert it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from surestep.base.errors import DataError
from surestep.engine.batch import MicroBatch, flatten_tensors

FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def explain_forward(error: Exception, model: nn.Module, micro: MicroBatch, *, alone: bool) -> str:
    """Return why a forward failed: torch's message, the module, and what to convert.

    The model is called again to find the module, if this rank is `alone` in the forward.
    """
    text = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    found = _find_failing(model, micro) if alone else None
    if found is None:
        return f"{text}."
    name, module, inputs = found
    kind = type(module).__name__
    got = ", ".join(f"{tuple(x.shape)} of {x.dtype}" for x in inputs) or "no tensor"
    where = f"module {name!r} ({kind}) got {got}"
    hint = _hint(module, inputs[0], given=flatten_tensors((micro.args, dict(micro.kwargs))))
    return f"{text}: {where}. {hint}".rstrip() if inputs else f"{text}: {where}."


def _find_failing(
    model: nn.Module, micro: MicroBatch
) -> tuple[str, nn.Module, list[Tensor]] | None:
    """Call the model again; return the innermost module that fails, and the tensors it got."""
    calls: list[tuple[nn.Module, list[Tensor]]] = []

    def enter(module: nn.Module, args: Any) -> None:
        calls.append((module, flatten_tensors(args)))

    def leave(module: nn.Module, args: Any, outputs: Any) -> None:
        calls.pop()

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        with torch.no_grad():
            model(*micro.args, **micro.kwargs)
    except FAILURES:
        names = {id(module): name for name, module in model.named_modules()}
        if calls:
            module, inputs = calls[-1]
            return names.get(id(module), "") or type(model).__name__, module, inputs
    finally:
        for handle in handles:
            handle.remove()
    return None


def _hint(module: nn.Module, got: Tensor, *, given: list[Tensor]) -> str:
    """Return what to convert for the common mistakes, else ""."""
    if isinstance(module, nn.Embedding):
        if got.is_floating_point():
            return "An embedding takes integer indices: convert the inputs with .long()."
        if got.numel() and int(got.max()) >= module.num_embeddings:
            return (
                f"It has {module.num_embeddings} rows and the largest index is {int(got.max())}: "
                "make num_embeddings larger, or correct the inputs."
            )
        return ""
    weight = next(module.parameters(recurse=False), None)
    if weight is not None and weight.is_floating_point() and got.dtype != weight.dtype:
        return _convert(got, weight.dtype, is_given=any(x.dtype == got.dtype for x in given))
    if isinstance(module, nn.Linear) and got.dim() and got.shape[-1] != module.in_features:
        return (
            f"It takes {module.in_features} features in the last dimension and got "
            f"{got.shape[-1]}: use nn.Linear({got.shape[-1]}, ...) or reshape its input."
        )
    if isinstance(module, _CONVOLUTIONS) and got.dim() > 1:
        return _channels(module.in_channels, got)
    return ""


def _convert(got: Tensor, dtype: torch.dtype, *, is_given: bool) -> str:
    numpy = ", which is numpy's default" if got.dtype == torch.float64 else ""
    short = str(dtype).removeprefix("torch.")
    what = "the inputs" if is_given else "its input"
    return (
        f"Its weights are {dtype} and its input is {got.dtype}{numpy}: convert {what} with "
        f".to(torch.{short}) (in numpy .astype('{short}'))."
    )


def _channels(channels: int, got: Tensor) -> str:
    dims = got.dim()
    if got.shape[1] == channels:
        return ""
    if got.shape[-1] == channels:
        moved = ", ".join(map(str, (0, dims - 1, *range(1, dims - 1))))
        return (
            f"It takes {channels} channels in dimension 1, and the input has them last: use "
            f"x.permute({moved})."
        )
    return f"It takes {channels} channels in dimension 1, and the input has {got.shape[1]}."


_ONE_VALUE = "Expected more than 1 value per channel when training"
OTHER_LAYER = (
    "replace the layer (GroupNorm), or keep its statistics fixed with Task(keep_eval=[layer])"
)


def explain_single(error: ValueError, samples: int) -> DataError | None:
    """Return torch's error for a batch of one value with what to do; None for other errors."""
    if _ONE_VALUE not in str(error):
        return None
    return DataError(
        f"A BatchNorm layer got one value per channel in a batch of {samples} samples ({error}). "
        f"Set data.drop_last=True; or use another batch_size or micro_batch_size; or {OTHER_LAYER}."
    )
