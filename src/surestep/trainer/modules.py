"""The modules of a model by name: their types and settings, which no shape of a tensor shows."""

from collections.abc import Iterator, Mapping
from inspect import isroutine
from typing import Any

from torch import nn

MODEL = "(the model)"  # what stands for the empty name of the model itself
_TORCH = "torch.nn."
Settings = Mapping[str, Any]


def describe_modules(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the type and the settings of each module: its public numbers, words and functions."""
    return {
        name or MODEL: {"type": _name_of(type(module)), **_settings(module)}
        for name, module in model.named_modules()
    }


def changed_modules(
    before: Mapping[str, Settings], now: Mapping[str, Settings]
) -> Iterator[tuple[str, str, str, bool]]:
    """Yield name, before, now of what differs, and whether torch says what it means.

    That Tanh became ReLU, or dropout another probability, is another function. What a setting of
    a class of the user's means is not known.
    """
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old is None or new is None:
            known = old or new or {}
            shown = _short(str(known.get("type")))
            pair = (shown, "none") if new is None else ("none", shown)
            yield name, *pair, str(known.get("type")).startswith(_TORCH)
            continue
        is_torchs = any(str(each.get("type")).startswith(_TORCH) for each in (old, new))
        if old.get("type") != new.get("type"):
            yield name, _short(str(old.get("type"))), _short(str(new.get("type"))), is_torchs
            continue
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield f"{name}.{key}", str(old.get(key)), str(new.get(key)), is_torchs


def _settings(module: nn.Module) -> dict[str, Any]:
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in ("training", "forward"):
            continue
        if isroutine(value):
            found[name] = _name_of(value)
        elif (plain := _plain(value)) is not None:
            found[name] = plain
    return found


def _plain(value: Any) -> Any:
    """Return a number, a word or a tuple of those as JSON holds it; None for anything else."""
    if isinstance(value, (tuple, list)):
        parts = [_plain(each) for each in value]
        return None if None in parts else parts
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return value if type(value) in (bool, int, str) else None


def _name_of(kind: Any) -> str:
    name = getattr(kind, "__qualname__", type(kind).__name__)
    return f"{getattr(kind, '__module__', None) or 'builtins'}.{name}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]
