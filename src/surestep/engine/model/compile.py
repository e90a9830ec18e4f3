"""torch.compile in place, so that no name changes, and how often it compiled.

Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from surestep.base.errors import ConfigError
from surestep.engine import private
from surestep.engine.model.activation_checkpointing import replace_forward
from surestep.engine.model.layers import blocks_of
from surestep.engine.plan.plan import Plan

# The class of the wrapper is in torch._dynamo, which takes a second to import.
_WRAPPED = "_orig_mod"


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers of `torch.compile(module)`; it still runs compiled.

    They would add `_orig_mod.` to the names of all parameters, in every checkpoint. Wrappers within
    the model are replaced in place.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if _WRAPPED in child._modules and _WRAPPED not in module._modules:
                setattr(module, name, _unwrap(child))
    return _unwrap(model) if _WRAPPED in model._modules else model


def _unwrap(wrapper: Any) -> nn.Module:
    _check_in_place()
    inner = unwrap_module(wrapper)
    inner._compiled_call_impl = wrapper.dynamo_ctx(_framed(inner))
    return inner


def unwrap_module(module: nn.Module) -> nn.Module:
    """Return the module that torch.compile wrapped."""
    while _WRAPPED in module._modules:
        module = module.get_submodule(_WRAPPED)
    return module


def _check_in_place() -> None:
    if not private.can_compile_in_place:
        raise ConfigError(
            f"torch {torch.__version__} does not compile modules in place as surestep needs it. "
            "Set compile=False, and pass a model without torch.compile()."
        )


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
    calls = {m: getattr(m, "_compiled_call_impl", None) for m in model.modules()}
    kept = {module: call for module, call in calls.items() if call is not None}
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
    _check_in_place()
    parts = [model]
    if in_blocks:
        parts = [model.get_submodule(name) for name in plan.parallel_wrap_policy] or parts
    elif plan.compile_blocks:
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


def _within_hooks(module: nn.Module) -> Callable[..., Any]:
    """Return the module's call with its forward compiled, and its hooks not.

    FSDP gathers and frees parameters in hooks, at which a graph would end.
    """
    forward = module.forward

    def framed(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    quick = torch.compile(framed)

    def call(*args: Any, **kwargs: Any) -> Any:
        with replace_forward(module, quick):
            return module._call_impl(*args, **kwargs)

    return call


def recompile_counter() -> Callable[[], str | None]:
    """Return a function that reports the graphs made by torch.compile since its last call."""
    seen, reported = private.count_graphs(), False

    def notice() -> str | None:
        nonlocal seen, reported
        before, seen = seen, private.count_graphs()
        first, reported = not reported, True
        if seen == before:
            return None
        if first:
            return f"torch.compile made {seen - before} graphs."
        return (
            f"torch.compile compiled again: {seen - before} more graphs. The first evaluation adds "
            "a graph. Otherwise a shape or a dtype has changed: data.drop_last=True leaves out a "
            "smaller last batch."
        )

    return notice


class DispatchMode(TorchDispatchMode):
    """A mode whose `__torch_dispatch__` is left as it is.

    torch wraps it so that torch.compile skips it, and the wrapper imports torch._dynamo at its
    first call, which takes about as long as importing torch. These modes run without torch.compile.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
