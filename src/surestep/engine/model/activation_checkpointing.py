"""Activation checkpointing: what a forward leaves for the backward is computed again instead.

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
from surestep.engine.generators import DatasetRNG
from surestep.engine.global_rng import repeat_draws, state_of_globals
from surestep.engine.model.generators import forbid_draws
from surestep.engine.model.layers import blocks_of
from surestep.engine.model.param_patterns import plain_name

_BatchNorm = nn.modules.batchnorm._BatchNorm


def uses_own_checkpointing(model: nn.Module) -> bool:
    """Say whether the model brings its own, as Hugging Face models do."""
    supported = getattr(model, "supports_gradient_checkpointing", True)
    return bool(supported) and callable(getattr(model, "gradient_checkpointing_enable", None))


def activation_checkpointing(
    model: nn.Module,
    choice: str,
    *,
    compiles: bool = False,
    watched: Sequence[DatasetRNG] = (),
) -> AbstractContextManager[None]:
    """Return a context in which the chosen modules keep no activations for the backward.

    Args:
        model: whose modules.
        choice: "off"; "on" for what the model brings itself, or else for every block; "every n"
            for each n-th block; or names of modules, as patterns with spaces between them.
        compiles: torch.compile is used, which takes no contexts of a recomputation.
        watched: generators from which no recomputation may draw; may be filled later.

    Raises:
        ConfigError: nothing is chosen by it.
    """
    if choice == "off":
        return nullcontext()
    if choice == "on" and uses_own_checkpointing(model):
        return model_checkpointing(model, compiles=compiles, watched=watched)
    return checkpoint_modules(select_modules(model, choice), watched)


def select_modules(model: nn.Module, choice: str) -> Mapping[str, nn.Module]:
    """Return the modules that are chosen, by name; none of them lies within another.

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
    known = {plain_name(name): module for name, module in model.named_modules() if name}
    found: dict[str, nn.Module] = {}
    for pattern in words:
        names = [name for name in known if fnmatchcase(name, pattern)]
        if not names:
            raise ConfigError(
                f"activation_checkpointing={choice!r}: {pattern!r} matches no module of the "
                f"model. {suggest_names(pattern, known)}"
            )
        found |= {name: known[name] for name in names}
    inside = {id(part) for each in found.values() for part in list(each.modules())[1:]}
    return {name: module for name, module in found.items() if id(module) not in inside}


@contextmanager
def checkpoint_modules(
    modules: Mapping[str, nn.Module], watched: Sequence[DatasetRNG] = ()
) -> Iterator[None]:
    """Let the forward of these modules be run again in the backward, with the same dropout."""
    with ExitStack() as undo:
        for module in modules.values():
            own = vars(module).get("forward")
            module.forward = partial(_forward, module, module.forward, watched)
            undo.callback(_put_back, module, own)
        yield


def _put_back(module: nn.Module, own: Callable[..., Any] | None) -> None:
    if own is None:
        del module.forward
    else:
        module.forward = own


def _forward(
    module: nn.Module,
    forward: Callable[..., Any],
    watched: Sequence[DatasetRNG],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if not (module.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    norms = [each for each in module.modules() if isinstance(each, _BatchNorm)]
    more: dict[str, Any] = {}
    # A compiled forward moves the statistics once by itself, and takes no context of another's.
    if not torch.compiler.is_compiling():
        more["context_fn"] = partial(_contexts, norms, watched)
    return checkpoint(forward, *args, use_reentrant=False, **more, **kwargs)


def _contexts(
    norms: Sequence[nn.Module] = (), watched: Sequence[DatasetRNG] = ()
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of a forward and of its repetition, which draws the same numbers.

    torch itself sees to its own generators, and not to numpy's and Python's.
    """
    return nullcontext(), _repeated(norms, watched, state_of_globals())


@contextmanager
def _repeated(
    norms: Sequence[nn.Module],
    watched: Sequence[DatasetRNG],
    drawn_from: tuple[Any, Any] | None,
) -> Iterator[None]:
    with forbid_draws(watched), repeat_draws(drawn_from), _kept_statistics(norms):
        yield


@contextmanager
def _kept_statistics(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Let a second forward move copies of the running statistics: the first has moved them."""
    kept = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        for name, buffer in buffers.items():
            norm._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)


@contextmanager
def model_checkpointing(
    model: Any, *, compiles: bool = False, watched: Sequence[DatasetRNG] = ()
) -> Iterator[None]:
    """Switch the model's own activation checkpointing on, and off again.

    Its cache of keys and values, which generating text needs and training does not, is off
    meanwhile: the two do not go together, and transformers would warn of it.
    """
    # transformers 5.23 has given the older name up.
    newer = getattr(model, "activation_checkpointing_enable", None)
    options: dict[str, Any] = {"use_reentrant": False}
    if not compiles:
        options["context_fn"] = partial(_contexts, watched=watched)
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
