"""torch.compile in place, so that no name changes, and how often it compiled.

Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from surestep.engine.model.layers import blocks_of
from surestep.engine.model.param_patterns import plain_name
from surestep.engine.plan.plan import Plan


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers of `torch.compile(module)`; it still runs compiled.

    They would add `_orig_mod.` to the names of all parameters, in every checkpoint. Wrappers within
    the model are replaced in place.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _wraps(child) and not _wraps(module):
                setattr(module, name, _inside(child))
    return _inside(model) if _wraps(model) else model


def _wraps(module: nn.Module) -> bool:
    # Its class is in torch._dynamo, which takes a second to import.
    return "_orig_mod" in module._modules


def _inside(wrapper: Any) -> nn.Module:
    inner: nn.Module = wrapper._orig_mod
    inner._compiled_call_impl = wrapper.dynamo_ctx(_framed(inner))
    return inner


def _framed(module: nn.Module) -> Callable[..., Any]:
    """Return the module's call in a frame outside torch.nn, whose frames dynamo skips.

    A Sequential of Linears would otherwise run uncompiled.
    """
    call = module._call_impl

    @wraps(call)
    def framed(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return framed


@contextmanager
def disable_compile(model: nn.Module) -> Iterator[None]:
    """Run the model uncompiled: dynamo gives up for good on code under a dispatch mode."""
    kept = {m: m._compiled_call_impl for m in model.modules() if m._compiled_call_impl is not None}
    for module in kept:
        module._compiled_call_impl = None
    try:
        yield
    finally:
        for module, call in kept.items():
            module._compiled_call_impl = call


@contextmanager
def compile_model(model: nn.Module, plan: Plan, *, in_blocks: bool) -> Iterator[None]:
    """Compile the model, or each of its blocks; the names of its modules stay.

    `in_blocks`: hooks gather the parameters one block at a time.
    """
    if plan.compile == "off":
        yield
        return
    parts = _gathered(model, plan) if in_blocks else [model]
    if plan.compile_blocks and not in_blocks:
        parts = list(blocks_of(model).values())
    before = [part._compiled_call_impl for part in parts]
    for part in parts:
        mode = None if plan.compile == "default" else plan.compile
        part._compiled_call_impl = (
            _within_hooks(part) if in_blocks else torch.compile(_framed(part), mode=mode)
        )
    try:
        yield
    finally:
        for part, own in zip(parts, before, strict=True):
            part._compiled_call_impl = own


def _gathered(model: nn.Module, plan: Plan) -> list[nn.Module]:
    """Return the blocks that FSDP gathers one at a time, or else the model."""
    known = {plain_name(name): module for name, module in model.named_modules()}
    return [known[name] for name in plan.parallel_wrap_policy] or [model]


def _within_hooks(module: nn.Module) -> Callable[..., Any]:
    """Return the module's call with its forward compiled, and its hooks not.

    FSDP gathers and frees parameters in hooks, at which a graph would end.
    """
    forward = module.forward

    def framed(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    quick = torch.compile(framed)

    def call(*args: Any, **kwargs: Any) -> Any:
        own = vars(module).get("forward")
        module.forward = quick
        try:
            return module._call_impl(*args, **kwargs)
        finally:
            if own is None:
                del module.forward
            else:
                module.forward = own

    return call


class RecompileCounter:
    """Counts the graphs that torch.compile makes."""

    def __init__(self) -> None:
        self._seen = _graphs()
        self._reported = False

    def notice(self) -> str | None:
        """Return a message about graphs since the last call, or None."""
        before, self._seen = self._seen, _graphs()
        new, first, self._reported = self._seen - before, not self._reported, True
        if not new:
            return None
        if first:
            return f"torch.compile made {new} graphs."
        return (
            f"torch.compile compiled again: {new} graphs more. An evaluation's first batch is one; "
            "else a shape or a type has changed: data.drop_last=True leaves out a smaller last "
            "batch."
        )


def _graphs() -> int:
    from torch._dynamo.utils import counters  # half a second to import, and only needed here

    stats: Any = counters["stats"]
    return int(stats["unique_graphs"])
