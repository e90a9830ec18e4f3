"""Restore the attributes of a model, and of other objects of the user."""

import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surestep.engine.buffers import version_of
from surestep.engine.own_generators import is_generator

_OF_MODULES = vars(nn.Module()).keys()  # what torch keeps in every module
_NOT_OF_USERS = sys.stdlib_module_names | {"numpy", "torch", "surestep"}
_COLLECTIONS = (list, dict, set, deque)
_LEAVES = {bool, int, float, complex, str, bytes, type, type(None)}
_MOST = 10_000  # objects: more may be a dataset
_LARGEST = 2**31  # bytes of a tensor or an array


@contextmanager
def preserve_attributes(*codes: Any) -> Iterator[None]:
    """Restore attributes of modules with their parts, or of other objects, and of objects in them.

    A model or a loss may count its calls, or collect values in a list or a tensor. Parameters,
    buffers and modes are restored elsewhere. If a layer, a buffer or a hook was added, which an
    attribute may describe, nothing of that model or loss is restored. A generator that was made
    stays, since it is seeded from now on. Of very many objects, the first are restored.
    """
    before = []
    for code in (getattr(code, "__self__", code) for code in codes):
        parts = _find_parts(code)
        owners = [part for part in parts if _has_attributes(part)]
        values = [(vars(owner), dict(vars(owner))) for owner in owners]
        copies = [(part, kept) for part in parts if (kept := _copy(part)) is not None]
        before.append((code, owners, values, copies, _structure(code, owners)))
    try:
        yield
    finally:
        for code, owners, values, copies, structure in before:
            if _structure(code, owners) == structure:
                for now, old in values:
                    _restore_attributes(now, old)
                for part, kept in copies:
                    _restore(part, kept)


def _find_parts(code: Any) -> list[Any]:
    """Return the objects, collections, tensors and arrays that are reached, each once."""
    found: dict[int, Any] = {}
    left = deque([code])
    while left and len(found) < _MOST:
        part = left.popleft()
        if id(part) in found:
            continue
        found[id(part)] = part
        left.extend(member for member in _members(part) if type(member) not in _LEAVES)
    return list(found.values())


def _elements(part: Any) -> Iterable[Any]:
    """Return the elements of a collection, but of a long one the first, and no numbers or text."""
    if not isinstance(part, (*_COLLECTIONS, tuple)):
        return ()
    elements = part.values() if isinstance(part, dict) else part
    return () if {*map(type, elements)} <= _LEAVES else islice(elements, _MOST)


def _members(part: Any) -> Iterator[Any]:
    yield from _elements(part)
    if isinstance(part, nn.Module):
        yield from part._modules.values()
    if _has_attributes(part):
        yield from (value for name, value in vars(part).items() if name not in _OF_MODULES)


def _has_attributes(value: Any) -> bool:
    """Return whether a value is an object of a class of the user, or of another package."""
    home = type(value).__module__.partition(".")[0]
    is_of_users = home not in _NOT_OF_USERS and not isinstance(value, type)
    return (is_of_users or type(value) is SimpleNamespace) and hasattr(value, "__dict__")


def _restore_attributes(now: dict[str, Any], old: dict[str, Any]) -> None:
    for name in now.keys() - old.keys():
        if not is_generator(now[name]):
            del now[name]
    for name in old.keys() - _OF_MODULES:
        if old[name] is not None or not is_generator(now.get(name)):
            now[name] = old[name]


def _copy(part: Any) -> Any:
    """Return a copy on the host of what may be changed in place; None for anything else."""
    if type(part) is Tensor:
        is_plain = part.layout is torch.strided and not (part.requires_grad or part.is_meta)
        # Of an expanded tensor, the memory is that of another one.
        if is_plain and 0 not in part.stride() and part.nbytes <= _LARGEST:
            return part.to("cpu", copy=True), version_of(part)
    elif isinstance(part, np.ndarray):
        is_own = part.flags.writeable and not isinstance(part, np.memmap)
        return part.copy() if is_own and part.nbytes <= _LARGEST else None
    elif isinstance(part, dict):
        return list(part.items())
    elif isinstance(part, _COLLECTIONS):
        return list(part)
    return None


def _restore(part: Any, kept: Any) -> None:
    """Restore what was changed in place; a class of the user may forbid changes by its methods."""
    if isinstance(part, Tensor):
        values, version = kept
        if version_of(part) != version:
            with torch.no_grad():
                part.copy_(values)
    elif isinstance(part, np.ndarray):
        if not np.array_equal(part, kept):
            part[...] = kept
    elif isinstance(part, dict):
        if not _are_same([*part.values()], [value for _, value in kept]) or [*part] != [
            key for key, _ in kept
        ]:
            kind: type[dict[Any, Any]] = OrderedDict if isinstance(part, OrderedDict) else dict
            kind.clear(part)
            for key, value in kept:
                kind.__setitem__(part, key, value)
    elif isinstance(part, set):
        if part != set(kept):
            set.clear(part)
            set.update(part, kept)
    elif not _are_same(list(part), kept):
        if isinstance(part, list):
            list.__setitem__(part, slice(None), kept)
        else:
            deque.clear(part)
            deque.extend(part, kept)


def _are_same(now: list[Any], old: list[Any]) -> bool:
    return len(now) == len(old) and all(map(operator.is_, now, old))


def _structure(code: Any, owners: list[Any]) -> list[int]:
    """Return the layers and parameters of code, and how many buffers and hooks its parts have."""
    parts = []
    if isinstance(code, nn.Module):
        parts = [*map(id, code.modules()), *map(id, code.parameters())]
    for name, value in (item for owner in owners for item in vars(owner).items()):
        if name in _OF_MODULES:
            parts += [len(value)] if isinstance(value, dict) else []
            continue
        members = (value, *_elements(value))
        parts += [id(one) for one in members if isinstance(one, (nn.Module, nn.Parameter))]
    return parts
