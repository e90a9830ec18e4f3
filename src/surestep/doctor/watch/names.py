"""Find the name of a parameter in the model that has it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn


def find_name(parameter: Tensor) -> str:
    """Return the longest name of a parameter in a module that is alive; its shape without any."""
    longest = ""
    for module in list(find_modules("Module")):
        for name, other in module.named_parameters():
            if (
                other is parameter
                and name.count(".") >= longest.count(".")
                and len(name) > len(longest)
            ):
                longest = name
    shape = tuple(parameter.shape)
    return longest or f"a parameter of shape {shape}"


def find_modules(kind: str) -> Iterator[nn.Module]:
    """Yield the modules that are alive and of a class of this name, or of one derived from it."""
    from torch import nn

    for found in gc.get_objects():
        bases = type(found).__mro__
        if nn.Module in bases and any(base.__name__ == kind for base in bases):
            yield found
