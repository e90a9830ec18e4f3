"""Find the name of a parameter in the model that has it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def find_name(parameter: Tensor) -> str:
    """Return the longest name of a parameter in a module that is alive; its shape without any."""
    from torch import nn

    longest = ""
    for module in [found for found in gc.get_objects() if isinstance(found, nn.Module)]:
        for name, other in module.named_parameters():
            if (
                other is parameter
                and name.count(".") >= longest.count(".")
                and len(name) > len(longest)
            ):
                longest = name
    shape = tuple(parameter.shape)
    return longest or f"a parameter of shape {shape}"
