"""Errors of a forward: which module, what it got, and how to convert it."""

from collections.abc import Mapping
from inspect import getinnerframes
from typing import Any

import torch
from torch import Tensor, nn

from surestep.base.errors import DataError
from surestep.engine import private
from surestep.engine.batch import MicroBatch, describe_tensors, flatten_tensors
from surestep.engine.modes import needs_gradient_hint

_CALL = getattr(private.call_module, "__code__", None)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
OTHER_LAYER = (
    "replace the layer (GroupNorm), or keep its statistics fixed with Task(keep_eval=[layer])"
)


def explain_forward(error: Exception, model: nn.Module, micro: MicroBatch) -> str:
    """Return why a forward failed: the innermost module and what to change, or torch's message."""
    text = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    assert error.__traceback__ is not None
    frames = [info.frame for info in getinnerframes(error.__traceback__, context=0)]
    calls = [frame for frame in frames if frame.f_code is _CALL]
    if not calls:
        return f"{text}."
    given = calls[-1].f_locals
    module, got = given["self"], flatten_tensors((given["args"], given.get("kwargs")))
    names = {id(part): name for name, part in model.named_modules()}
    name = names.get(id(module)) or type(module).__name__
    where = f"module {name!r} ({type(module).__name__}) got {describe_tensors(got)}."
    inputs = flatten_tensors((micro.args, dict(micro.kwargs)))
    if len(got) > 1 and all(x.shape == (micro.samples,) for x in inputs):
        instead = "If the samples are Python lists, convert them to tensors: torch.tensor(data)."
        if micro.kwargs:
            instead = (
                "To make one of them, set Task(inputs=lambda batch: (torch.stack([batch[name] for "
                "name in batch if name != 'label'], 1).float(), batch['label'])), where 'label' is "
                "the key of the targets."
            )
        return (
            f"{where} Each sample is several numbers, and torch makes an input of each. {instead}"
        )
    if module is model and micro.kwargs and "unexpected keyword argument" in text:
        first = next(iter(micro.kwargs))
        return (
            f"{text}: {where} The parts of a dict are passed by name, except the targets. Give "
            "them the names of its arguments, or pass them in order: Task(inputs=lambda batch: "
            f"((batch[{first!r}],), batch['label'])), where 'label' is the key of the targets."
        )
    hint = _hint(module, got[0], inputs=inputs) if got else ""
    if more := needs_gradient_hint(error) or nesting_hint(micro.args):
        hint = f"{hint} {more}".strip()
        return f"{text}: {where} {hint}"
    return f"{where} {hint}" if hint else f"{text}: {where}"


def nesting_hint(args: tuple[Any, ...]) -> str:
    """Return how to pass the parts of a nested input to the model one by one, or ""."""
    nested = {
        index: "dict" if isinstance(arg, Mapping) else type(arg).__name__
        for index, arg in enumerate(args)
        if isinstance(arg, (tuple, list, Mapping)) and flatten_tensors(arg)
    }
    if not nested:
        return ""
    index, kind = next(iter(nested.items()))
    if len(args) == 1:
        what, others = "batch[0]" if kind == "dict" else "tuple(batch[0])", ""
    else:
        stars = [
            f"*batch[{i}]{'.values()' if nested[i] == 'dict' else ''}"
            if i in nested
            else f"batch[{i}]"
            for i in range(len(args))
        ]
        what = f"({', '.join(stars)})"
        others = " Only the last part is targets: if others are, pass them with it, as a tuple."
    return (
        f"Part {index} of a batch is a {kind}, which the model gets as one argument. To pass its "
        f"{len(args[index])} parts as separate arguments, set Task(inputs=lambda batch: ({what}, "
        f"batch[-1])).{others}"
    )


def _hint(module: nn.Module, got: Tensor, *, inputs: list[Tensor]) -> str:
    """Return what to change, if that is known."""
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
    if weight is None or not weight.is_floating_point() or got.dtype == weight.dtype:
        return _size_hint(module, got)
    numpy = ", which is numpy's default" if got.dtype == torch.float64 else ""
    what = "the inputs" if any(x.dtype == got.dtype for x in inputs) else "its input"
    short = str(weight.dtype).removeprefix("torch.")
    return (
        f"Its weights are {weight.dtype} and its input is {got.dtype}{numpy}: convert {what} with "
        f".to({weight.dtype}) (in numpy .astype('{short}'))."
    )


def _size_hint(module: nn.Module, got: Tensor) -> str:
    """Return what to change if the features or channels do not fit the module."""
    if isinstance(module, nn.Linear) and got.dim() and got.shape[-1] != module.in_features:
        fits = got.dim() > 1 and got.numel() > 0  # a layer of that size would do
        change = f"use nn.Linear({got.shape[-1]}, ...) or " if fits else ""
        return (
            f"It takes {module.in_features} features in the last dimension and got "
            f"{got.shape[-1]}: {change}reshape its input."
        )
    if not isinstance(module, _CONVOLUTIONS) or got.dim() < 2:
        return ""
    channels, last = module.in_channels, got.dim() - 1
    if got.shape[1] == channels:
        return ""
    if got.shape[-1] != channels:
        return f"It takes {channels} channels in dimension 1, and the input has {got.shape[1]}."
    moved = ", ".join(map(str, (0, last, *range(1, last))))
    return (
        f"It takes {channels} channels in dimension 1, and the input has them last: use "
        f"x.permute({moved})."
    )


def explain_single(error: ValueError, samples: int) -> DataError | None:
    """Return torch's error for a batch of one value with what to do; None for other errors."""
    if "Expected more than 1 value per channel when training" not in str(error):
        return None
    return DataError(
        f"A BatchNorm layer got one value per channel in a batch of {samples} samples ({error}). "
        f"Set data.drop_last=True; or use another batch_size or micro_batch_size; or {OTHER_LAYER}."
    )
