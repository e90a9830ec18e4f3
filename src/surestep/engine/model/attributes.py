"""Restore the attributes of a model, and of other objects of the user."""

import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surestep.engine.buffers import version_of
from surestep.engine.own_generators import is_generator

_OF_MODULES = {*vars(nn.Module()), "_compiled_call_impl"}  # what torch keeps in modules
_NOT_OF_USERS = sys.stdlib_module_names | {"numpy", "torch", "surestep"}
_COLLECTIONS = (list, dict, set, deque)
_LEAVES = {bool, int, float, complex, str, bytes, type, type(None)}
_MOST = 10_000  # objects: more may be a dataset
_LARGEST = 2**31  # bytes of a tensor or an array
ABSENT: Any = object()  # the value of an attribute that an object does not have


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
                    restore_part(part, kept)


@dataclass(frozen=True, eq=False)
class Attribute:
    """A name in an object that is reached from the code of the user.

    Attributes:
        path: such as "model.noise.n".
        owner: the attributes of the object.
        name: its name there.
        module: the innermost module that the object is in; None if it is in none.
    """

    path: str
    owner: dict[str, Any]
    name: str
    module: nn.Module | None = None

    @property
    def value(self) -> Any:
        """Its value; ABSENT if the object does not have it."""
        return self.owner.get(self.name, ABSENT)


class AttributeSnapshot:
    """The values of attributes, with copies of what may be changed in place."""

    def __init__(self, attributes: Iterable[Attribute]) -> None:
        self._kept = [
            (attribute, attribute.value, _copy_parts(attribute.value)) for attribute in attributes
        ]

    def restore(self) -> None:
        """Restore the values, in place what was changed in place."""
        for attribute, value, copies in self._kept:
            if value is ABSENT:
                attribute.owner.pop(attribute.name, None)
            else:
                attribute.owner[attribute.name] = value
            for part, kept in copies:
                restore_part(part, kept)

    def changed(self) -> list[Attribute]:
        """Return those that have a different value, or one that was changed in place."""
        return [
            attribute
            for attribute, old, copies in self._kept
            if not _is_value(attribute.value, old) or any(_is_changed(*pair) for pair in copies)
        ]

    def had(self, attribute: Attribute) -> Any:
        """Return the value that an attribute had; ABSENT if there was none."""
        return next((old for one, old, _ in self._kept if one.path == attribute.path), ABSENT)

    def select(self, attributes: Collection[Attribute]) -> "AttributeSnapshot":
        """Return the part of some of the attributes."""
        selected, paths = AttributeSnapshot(()), {attribute.path for attribute in attributes}
        selected._kept = [entry for entry in self._kept if entry[0].path in paths]
        return selected


class ObjectSnapshot(AttributeSnapshot):
    """The attributes of code of the user and of objects in it, also those that are added later.

    Args:
        codes: by the first part of their paths: modules, functions and other objects.

    Attributes:
        is_complete: False if there are very many objects, of which only the first are followed.
    """

    def __init__(self, codes: Mapping[str, Any]) -> None:
        self._codes = [getattr(code, "__self__", code) for code in codes.values()]
        self._owners, self.is_complete = _find_owners(codes)
        self._structures = self._find_structures()
        super().__init__(
            Attribute(f"{path}.{name}", vars(owner), name, module)
            for path, owner, module in self._owners
            for name in vars(owner)
            if name not in _OF_MODULES
        )

    def restore(self) -> None:
        """Restore what has changed."""
        self.select(self.changed()).restore()

    def changed(self) -> list[Attribute]:
        """Return those that changed or were added; none if a layer, buffer or hook was added."""
        if self._find_structures() != self._structures:
            return []
        before = {(id(entry[0].owner), entry[0].name) for entry in self._kept}
        added = [
            Attribute(f"{path}.{name}", vars(owner), name, module)
            for path, owner, module in self._owners
            for name in vars(owner)
            if name not in _OF_MODULES and (id(vars(owner)), name) not in before
        ]
        self._kept += [(attribute, ABSENT, []) for attribute in added]
        # A generator that was made stays, since it is seeded from now on.
        return [attribute for attribute in super().changed() if not is_generator(attribute.value)]

    def _find_structures(self) -> list[list[int]]:
        return [_structure(code, [owner for _, owner, _ in self._owners]) for code in self._codes]


def find_attribute(codes: Mapping[str, Any], path: str) -> Attribute | None:
    """Return the attribute with a path, which its object need not have yet; None without one."""
    for prefix, owner, module in _find_owners(codes)[0]:
        name = path.removeprefix(f"{prefix}.")
        if name != path and name.isidentifier():
            return Attribute(path, vars(owner), name, module)
    return None


def _find_owners(codes: Mapping[str, Any]) -> tuple[list[tuple[str, Any, nn.Module | None]], bool]:
    """Return the objects with attributes, with their paths and modules, and whether it is all."""
    found: dict[int, Any] = {}
    left: deque[tuple[str, Any, nn.Module | None]] = deque(
        (path, getattr(code, "__self__", code), None) for path, code in codes.items()
    )
    owners = []
    while left and len(found) < _MOST:
        path, part, module = left.popleft()
        if id(part) in found:
            continue
        found[id(part)] = part
        module = part if isinstance(part, nn.Module) else module
        if _has_attributes(part):
            owners.append((path, part, module))
        left.extend(
            (f"{path}{suffix}", member, module)
            for suffix, member in _members(part)
            if type(member) not in _LEAVES
        )
    return owners, not left


def _find_parts(code: Any) -> list[Any]:
    """Return the objects, collections, tensors and arrays that are reached, each once."""
    return _reach(code, lambda part: (member for _, member in _members(part)))


def _copy_parts(value: Any) -> list[tuple[Any, Any]]:
    """Return what may be changed in place in an attribute, with copies; not other objects."""
    if type(value) in _LEAVES:
        return []
    parts = _reach(value, lambda part: (member for _, member in _elements(part)))
    return [(part, kept) for part in parts if (kept := _copy(part)) is not None]


def _reach(code: Any, members: Callable[[Any], Iterable[Any]]) -> list[Any]:
    found: dict[int, Any] = {}
    left = deque([code])
    while left and len(found) < _MOST:
        part = left.popleft()
        if id(part) in found:
            continue
        found[id(part)] = part
        left.extend(member for member in members(part) if type(member) not in _LEAVES)
    return list(found.values())


def _elements(part: Any) -> Iterable[tuple[str, Any]]:
    """Return the elements of a collection, but of a long one the first, and no numbers or text."""
    if not isinstance(part, (*_COLLECTIONS, tuple)):
        return ()
    elements = part.values() if isinstance(part, dict) else part
    if {*map(type, elements)} <= _LEAVES:
        return ()
    pairs = part.items() if isinstance(part, dict) else enumerate(part)
    return ((f"[{key!r}]", element) for key, element in islice(pairs, _MOST))


def _members(part: Any) -> Iterator[tuple[str, Any]]:
    yield from _elements(part)
    if isinstance(part, nn.Module):
        yield from ((f".{name}", child) for name, child in part._modules.items())
    if _has_attributes(part):
        yield from (
            (f".{name}", value) for name, value in vars(part).items() if name not in _OF_MODULES
        )


def _has_attributes(value: Any) -> bool:
    """Return whether a value is an object of a class of the user, or of another package."""
    home = _class_of(value).__module__.partition(".")[0]
    is_of_users = home not in _NOT_OF_USERS and not isinstance(value, type)
    return (is_of_users or type(value) is SimpleNamespace) and hasattr(value, "__dict__")


def _class_of(value: Any) -> type:
    """Return the class of an object; of a module, without the one that FSDP derives from it."""
    if isinstance(value, nn.Module):
        names = [base.__name__ for base in type(value).__mro__]
        if "FSDPModule" in names:
            return type(value).__mro__[names.index("FSDPModule") + 1]
    return type(value)


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


def restore_part(part: Any, kept: Any) -> None:
    """Restore what was changed in place; a class of the user may forbid changes by its methods."""
    if not _is_changed(part, kept):
        return
    if isinstance(part, Tensor):
        with torch.no_grad():
            part.copy_(kept[0])
    elif isinstance(part, np.ndarray):
        part[...] = kept
    elif isinstance(part, dict):
        kind: type[dict[Any, Any]] = OrderedDict if isinstance(part, OrderedDict) else dict
        kind.clear(part)
        for key, value in kept:
            kind.__setitem__(part, key, value)
    elif isinstance(part, set):
        set.clear(part)
        set.update(part, kept)
    elif isinstance(part, list):
        list.__setitem__(part, slice(None), kept)
    else:
        deque.clear(part)
        deque.extend(part, kept)


def _is_changed(part: Any, kept: Any) -> bool:
    """Return whether what was copied was changed in place."""
    if isinstance(part, Tensor):
        return bool(version_of(part) != kept[1])
    if isinstance(part, np.ndarray):
        return not np.array_equal(part, kept)
    if isinstance(part, dict):
        keys, values = [key for key, _ in kept], [value for _, value in kept]
        return [*part] != keys or not _are_same([*part.values()], values)
    if isinstance(part, set):
        return part != set(kept)
    return not _are_same(list(part), kept)


def _is_value(now: Any, old: Any) -> bool:
    """Return whether a value is the same object, or the same number or text."""
    return now is old or (type(now) is type(old) and type(now) in _LEAVES and bool(now == old))


def _are_same(now: list[Any], old: list[Any]) -> bool:
    return len(now) == len(old) and all(map(operator.is_, now, old))


def _structure(code: Any, owners: list[Any]) -> list[int]:
    """Return the layers and parameters of code, and how many buffers and hooks its parts have."""
    parts = []
    if isinstance(code, nn.Module):
        parts = [*map(id, code.modules())]
        # FSDP replaces parameters by shards of them, and back.
        if all(_class_of(part) is type(part) for part in code.modules()):
            parts += map(id, code.parameters())
    for name, value in (item for owner in owners for item in vars(owner).items()):
        if name in _OF_MODULES:
            parts += [len(value)] if isinstance(value, dict) else []
            continue
        members = (value, *(element for _, element in _elements(value)))
        parts += [id(one) for one in members if isinstance(one, (nn.Module, nn.Parameter))]
    return parts
