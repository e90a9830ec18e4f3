"""Activation checkpointing: what a forward leaves for the backward is computed again instead."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def uses_own_checkpointing(model: nn.Module) -> bool:
    """Say whether the model brings its own, as Hugging Face models do."""
    supported = getattr(model, "supports_gradient_checkpointing", True)
    return bool(supported) and callable(getattr(model, "gradient_checkpointing_enable", None))


@contextmanager
def own_checkpointing(model: Any) -> Iterator[None]:
    """Switch the model's own activation checkpointing on, and off again.

    Its cache of keys and values, which generating text needs and training does not, is off
    meanwhile: the two do not go together, and transformers would warn of it.
    """
    # transformers 5.23 has given the older name up.
    newer = getattr(model, "activation_checkpointing_enable", None)
    if newer is not None:
        newer(activation_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
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
