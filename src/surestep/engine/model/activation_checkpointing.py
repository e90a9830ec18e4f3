"""Activation checkpointing: activations are recomputed in the backward instead of stored.

Source: https://docs.pytorch.org/docs/stable/checkpoint.html (with `use_reentrant=False`)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from surestep.base.errors import ConfigError, suggest_names
from surestep.engine.model.layers import blocks_of
from surestep.engine.rng import repeat_draws, states_to_repeat

_BatchNorm = nn.modules.batchnorm._BatchNorm


def uses_own_checkpointing(model: nn.Module) -> bool:
    """Return whether the model has its own implementation, as Hugging Face models do."""
    supported = getattr(model, "supports_gradient_checkpointing", True)
    return bool(supported) and callable(getattr(model, "gradient_checkpointing_enable", None))


@contextmanager
def activation_checkpointing(
    model: nn.Module, choice: str, *, compiles: bool = False
) -> Iterator[None]:
    """Recompute the activations of the selected modules in the backward, with the same dropout.

    Args:
        model: the model.
        choice: "off"; "on" for the model's own implementation, or else every block; "every n" for
            each n-th block; or patterns of module names, separated by spaces.
        compiles: torch.compile is used, which takes no contexts of a recomputation.

    Raises:
        ConfigError: it selects nothing.
    """
    with ExitStack() as undo:
        if choice == "on" and uses_own_checkpointing(model):
            undo.enter_context(model_checkpointing(model, compiles=compiles))
        elif choice != "off":
            for module in select_modules(model, choice).values():
                forward = partial(_forward, module, module.forward)
                undo.enter_context(replace_forward(module, forward))
        yield


def select_modules(model: nn.Module, choice: str) -> Mapping[str, nn.Module]:
    """Return the selected modules by name; none is inside another.

    Raises:
        ConfigError: there are none.
    """
    words = choice.split()
    if choice == "on" or words[0] == "every":
        blocks = blocks_of(model)
        if not blocks:
            raise ConfigError(
                f"activation_checkpointing={choice!r} is for models with blocks, in a ModuleList "
                "or Sequential, and this one has none. Name modules: "
                f"{', '.join(name for name, _ in model.named_children())}."
            )
        every = 1 if choice == "on" else int(words[1])
        return dict(list(blocks.items())[::every])
    known = {name: module for name, module in model.named_modules() if name}
    found: dict[str, nn.Module] = {}
    for pattern in words:
        names = [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise ConfigError(
                f"activation_checkpointing={choice!r}: {pattern!r} matches no module of the "
                f"model. {suggest_names(pattern, known)}"
            )
        found |= {name: known[name] for name in names}
    inside = {id(part) for module in found.values() for part in list(module.modules())[1:]}
    return {name: module for name, module in found.items() if id(module) not in inside}


@contextmanager
def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Use another forward of a module, and restore its own."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _forward(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    more: dict[str, Any] = {}
    # A compiled forward updates the statistics once by itself, and takes no context.
    if not torch.compiler.is_compiling():
        more["context_fn"] = partial(_contexts, norms)
    return checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)


def _contexts(
    norms: Sequence[nn.Module] = (),
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a forward and of its recomputation, which draws the same numbers.

    torch restores its own generators, but not numpy's and Python's.
    """
    return nullcontext(), _recompute(norms, states_to_repeat())


@contextmanager
def _recompute(norms: Sequence[nn.Module], drawn_from: tuple[Any, Any] | None) -> Iterator[None]:
    """Recompute with the same draws; copies of the running statistics change, not these."""
    before = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, before, strict=True):
        for name, buffer in buffers.items():
            norm._buffers[name] = None if buffer is None else buffer.clone()
    try:
        with repeat_draws(drawn_from):
            yield
    finally:
        for norm, buffers in zip(norms, before, strict=True):
            norm._buffers.update(buffers)


@contextmanager
def model_checkpointing(model: Any, *, compiles: bool = False) -> Iterator[None]:
    """Use the model's own activation checkpointing, without its key-value cache.

    The two exclude each other, and transformers would warn.
    """
    # transformers 5.23 has removed the older name.
    newer = getattr(model, "activation_checkpointing_enable", None)
    options: dict[str, Any] = {"use_reentrant": False}
    if not compiles:
        options["context_fn"] = _contexts
    if newer is not None:
        newer(activation_checkpointing_kwargs=options)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    config: Any = getattr(model, "config", None)
    caches = bool(getattr(config, "use_cache", False))
    if caches:
        config.use_cache = False
    try:
        yield
    finally:
        if caches:
            config.use_cache = True
        off = getattr(model, "activation_checkpointing_disable", None)
        (off or model.gradient_checkpointing_disable)()
