"""Copies of metrics that are objects, so that no other use of the same object changes them."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn


def is_object(value: Any) -> bool:
    """Return whether a value is a metric with a state, as those of torchmetrics."""
    methods = ("update", "compute", "reset")
    return not isinstance(value, type) and all(hasattr(value, name) for name in methods)


def objects_in(metric: Any) -> set[int]:
    """Return the ids of a metric and of the metrics in it, such as those of a collection."""
    return set(_find(metric)[0])


def copy_metric(metric: Any) -> Any:
    """Return a copy with its own state; a function, or what cannot be copied, as it is.

    Modules without metrics in them are not copied: a model that the metric uses stays the same one.
    """
    if not is_object(metric):
        return metric
    _, modules = _find(metric)
    try:
        return copy.deepcopy(metric, dict(modules))
    except Exception:  # whatever the user's class raises
        return metric


def _find(value: Any) -> tuple[dict[int, Any], dict[int, nn.Module]]:
    """Return the metrics in a value, and the modules that have none, by id."""
    found: dict[int, Any] = {}
    modules: dict[int, nn.Module] = {}
    seen: set[int] = set()
    left = [value]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, (tuple, list)):
            left += one
        elif is_object(one):
            found[id(one)] = one
            left += getattr(one, "__dict__", {}).values()
        elif isinstance(one, nn.Module):
            if any(map(is_object, one.modules())):
                left += one.children()
            else:
                modules[id(one)] = one
    return found, modules
