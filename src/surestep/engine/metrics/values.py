"""What metrics return, as plain values by name."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from surestep.engine.value import Value


def plain_value(value: Any) -> Value:
    """Return a number; of a table or a curve the nested list of its numbers."""
    if isinstance(value, (tuple, list)):
        return [plain_value(each) for each in value]
    if isinstance(value, Tensor) and value.numel() != 1:
        return list(value.tolist())
    return float(value)


def named_values(name: str, value: Any) -> dict[str, Value]:
    """Return the value of a metric by its name, or its values by "name_key" if it has several."""
    if isinstance(value, Mapping):
        return {f"{name}_{key}": plain_value(each) for key, each in value.items()}
    return {name: plain_value(value)}
