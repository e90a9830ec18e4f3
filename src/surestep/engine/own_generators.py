"""Generators that data, a model or a loss owns: found, and seeded by position like the global ones.

A dataset or a transform that makes a generator in `__init__` draws from its history, so a resumed
run, or one with a different number of workers, would silently draw other numbers. Generators that
are found are seeded before each sample or micro-batch. For other random state, a class can have
`set_sample_seed(seed)`.
"""

import os
import random
import sys
import sysconfig
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dis import get_instructions
from enum import Enum
from functools import cache, partial
from hashlib import blake2b
from inspect import ismemberdescriptor, ismethod, ismodule, isroutine
from itertools import islice
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.base.warn import warn

HOOK = "set_sample_seed"
_READS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
# Limits of a search, however large the data is: it takes some milliseconds.
OBJECTS, MEMBERS, DEPTH = 2000, 64, 8
_LEAVES = (Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, bool, type(None))
_NAMES = (str, bytes, int, float, complex, Enum, tuple, type(None))
_INSTALLED = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_GLOBAL: tuple[Any, ...] = (  # seeded with the global functions, which are their methods
    torch.default_generator,
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.random.__self__,  # type: ignore[attr-defined]
)
_OF_MODULE = vars(nn.Module()).keys() - {"_modules"}
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",  # of a parameter
)
_Found = tuple[str, Any, int]  # the path to an object, it, and its depth


class OwnGenerator(NamedTuple):
    """A generator that data, a model or a loss owns, and how to seed it.

    Attributes:
        path: where it was found, such as "dataset.transform.rng".
        kind: the name of its type.
        seed: takes a seed; None if it takes none.
        salt: mixed into the seed, so that two generators draw different numbers.
    """

    path: str
    kind: str
    seed: Callable[[int], object] | None
    salt: int

    def __str__(self) -> str:
        return f"{self.path} ({self.kind})"

    def manual_seed(self, seed: int) -> None:
        """Seed it for a position, as torch's generators are seeded."""
        if self.seed is not None:
            self.seed(seed ^ self.salt)


class OwnGenerators:
    """The generators that objects own; each root is the name of an object, and the object.

    Attributes, lists, dicts and hooks of modules are searched, and for code that is not an
    installed package the closures and globals of functions: at most `OBJECTS`, last those below
    `DEPTH` and after the first `MEMBERS` of a list. An object with `HOOK` is not searched.
    """

    def __init__(self, *roots: tuple[str, Any]) -> None:
        self.roots = roots
        self.found: list[OwnGenerator] = []
        self._watched: list[tuple[dict[Any, Any], int, list[Any]]] = []
        self._find()

    def reseed(self, seed: int) -> None:
        """Seed them for a position."""
        for rng in self.found:
            rng.manual_seed(seed)

    def has_new(self) -> bool:
        """Return whether one was created since the search, so it was not seeded.

        Many are created by the first load of a process, `if self.rng is None`. So the number of
        attributes is watched, and those that were None; that takes a microsecond.
        """
        for members, count, empty in self._watched:
            if len(members) != count or any(members.get(name) is not None for name in empty):
                before = len(self.found)
                self._find()
                return len(self.found) > before
        return False

    def _find(self) -> None:
        self.found, self._watched = [], []
        near = deque((name, value, 0) for name, value in self.roots)
        far = deque[Iterator[_Found]]()
        visited = set(map(id, _GLOBAL))
        limit = OBJECTS + 2 * len(near)  # a root may be a module, with a dict of its children
        paths: Counter[str] = Counter()
        for path, value, depth in _near_first(near, far):
            if isinstance(value, _LEAVES) or ismodule(value) or id(value) in visited:
                continue
            visited.add(id(value))
            if len(visited) > limit:
                break
            own = _as_generator(path, value, paths)
            if own is not None:
                self.found.append(own)
                continue
            members = _placed(path, depth, _members(value))
            if depth < DEPTH:
                near.extend(members)
                self._watch(value)
            else:
                far.append(members)
            far.append(_placed(path, depth, _more_members(value)))

    def _watch(self, value: Any) -> None:
        members = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        limit = MEMBERS + 2 * len(self.roots)  # all roots: a loss comes after the model's modules
        if isinstance(members, dict) and len(members) <= MEMBERS and len(self._watched) < limit:
            empty = [name for name, member in members.items() if member is None]
            self._watched.append((members, len(members), empty))


def _near_first(near: deque[_Found], far: deque[Iterator[_Found]]) -> Iterator[_Found]:
    """Yield all that is near, then all that is far; both may grow meanwhile."""
    while near or far:
        if near:
            yield near.popleft()
        elif (found := next(far[0], None)) is not None:
            yield found
        else:
            far.popleft()


def _placed(path: str, depth: int, members: Iterator[tuple[str, Any]]) -> Iterator[_Found]:
    return ((path + at, member, depth + 1) for at, member in members)


def _as_generator(path: str, value: Any, paths: Counter[str]) -> OwnGenerator | None:
    kind, seed = type(value).__name__, _seed_function(value)
    if seed is None and not isinstance(value, random.SystemRandom):
        return None
    paths[path] += 1
    if paths[path] > 1:  # an attribute of a class and one of its object have the same path
        path = f"{path}#{paths[path]}"
    salt = int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little") >> 1
    return OwnGenerator(path, kind, seed, salt)


def is_generator(value: Any) -> bool:
    """Return whether a value is a generator that takes a seed."""
    return _seed_function(value) is not None


def _seed_function(value: Any) -> Callable[[int], object] | None:
    """Return what seeds a generator; None for anything else, or if it takes no seed."""
    hook: Callable[[int], object] | None = getattr(type(value), HOOK, None)
    if callable(hook):
        return partial(hook, value)
    if isinstance(value, torch.Generator):
        return value.manual_seed
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else value.seed
    if isinstance(value, np.random.RandomState):
        return lambda seed: value.seed(seed % 2**32)
    if isinstance(value, np.random.Generator):
        return partial(_seed_bits, value.bit_generator)
    return partial(_seed_bits, value) if isinstance(value, np.random.BitGenerator) else None


def _seed_bits(bits: np.random.BitGenerator, seed: int) -> None:
    # A bit generator has no method for it, and may be shared.
    bits.state = type(bits)(seed).state


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the path to it."""
    yield from islice(_elements(value), MEMBERS)
    if isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif ismethod(value):
        yield ".__self__", value.__self__
        yield "", value.__func__
    elif isroutine(value):
        yield from _function_members(value)
    else:
        yield from _class_members(value)
    if isinstance(value, type):
        return
    hidden = _OF_MODULE if isinstance(value, nn.Module) else ()
    yield from _hooks(value) if isinstance(value, nn.Module) else ()
    for name, member in list(getattr(value, "__dict__", {}).items())[:OBJECTS]:
        if name not in hidden:
            yield f".{name}", member


def _elements(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a dict, list or set; "own" is the key of a process for itself."""
    if isinstance(value, Mapping):
        own = (os.getpid(), threading.get_ident())
        for index, (key, member) in enumerate(value.items()):
            if isinstance(key, int) and key in own:
                yield "[own]", member
            elif isinstance(key, _NAMES):
                yield f"[{key!r}]", member
            else:  # the text of an object may have an address, that of a tensor all numbers
                yield f"[key {index}]", member
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((f"[{i}]", member) for i, member in enumerate(value))


def _more_members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the elements after the first; none of a list of numbers, which may be long."""
    elements = _elements(value)
    if not all(isinstance(member, _LEAVES) for _, member in islice(elements, MEMBERS)):
        yield from elements


def _hooks(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the hooks of a module and of its parameters, by number: their keys count all hooks."""
    for at, owner in [("", module), *((f".{n}", p) for n, p in module._parameters.items())]:
        for kind in _HOOKS:
            hooks = getattr(owner, kind, None) or {}
            yield from ((f"{at}.{kind}[{i}]", hook) for i, hook in enumerate(hooks.values()))


def _class_members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object has by its class: slots, class attributes and methods."""
    for kind in (value if isinstance(value, type) else type(value)).__mro__:
        if _is_installed(sys.modules.get(kind.__module__)):
            continue
        for name, member in list(vars(kind).items()):
            if ismemberdescriptor(member):
                member = getattr(value, name, None)
            if not name.startswith("__") or isroutine(member):
                yield f".{name}", member


def _function_members(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function closes over, and the globals that it names, also of its modules.

    Not of libraries, whose generators may have other uses: Hugging Face's datasets draw file names
    from one.
    """
    code = getattr(function, "__code__", None)
    if code is None or _is_installed(sys.modules.get(function.__module__)):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f":{name}", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    names = list(dict.fromkeys(_names(code)))
    for name in dict.fromkeys(_global_names(code)):
        found = function.__globals__.get(name)
        if ismodule(found) and not _is_installed(found):
            yield from ((f":{name}.{n}", vars(found)[n]) for n in names if n in vars(found))
        else:
            yield f":{name}", found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in code, also in the functions and comprehensions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@cache
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals that code reads; `co_names` has those of attributes too."""
    found = [step.argval for step in get_instructions(code) if step.opname in _READS_GLOBAL]
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return (*found, *(name for nested in inner for name in _global_names(nested)))


def _is_installed(module: ModuleType | None) -> bool:
    """Return whether a module is Python's or of an installed package."""
    if module is None:
        return False
    file, name = getattr(module, "__file__", None) or "", module.__name__
    is_own = name.partition(".")[0] == __name__.partition(".")[0]
    return is_own or name in sys.builtin_module_names or file.startswith(_INSTALLED)


def own_generators(model: nn.Module, others: Mapping[str, Any]) -> OwnGenerators:
    """Find the generators of a model and of others, which are losses and functions by name."""
    roots: list[tuple[str, Any]] = []
    for root, value in [("model", model), *others.items()]:
        if isinstance(value, nn.Module):
            modules = value.named_modules()
            roots += [(f"{root}.{name}" if name else root, module) for name, module in modules]
        else:
            roots.append((root, value))
    return OwnGenerators(*roots)


def check_own_generators(found: OwnGenerators, model: nn.Module, checkpointing: str) -> None:
    """Check that generators take a seed, and that no recomputation draws from the model's.

    Raises:
        TaskError: activation checkpointing may draw again.
    """
    if checkpointing != "off" and (recomputed := own_generators(model, {}).found):
        raise TaskError(
            f"activation_checkpointing={checkpointing!r} computes the forward twice, and the "
            f"second one may draw different numbers from {recomputed[0]}. Draw from torch's, "
            "numpy's or Python's global generator, or set activation_checkpointing='off'."
        )
    for rng in found.found:
        if rng.seed is None:
            warn(
                f"{rng} takes no seed, so a resumed run draws different numbers. Use "
                "random.Random, "
                "numpy.random.default_rng() or torch.Generator."
            )


def seed_late_generators(found: OwnGenerators, generators: list[Any]) -> None:
    """Warn of generators that the first step made, and seed them from the next micro-batch on.

    They are appended to `generators`.
    """
    before = {rng.path for rng in found.found}
    if not found.has_new():
        return
    late = [rng for rng in found.found if rng.path not in before]
    generators.extend(late)
    if late:
        warn(
            f"{late[0]} was created in the first step, so the first step of a resumed run draws "
            "different numbers. Create it in __init__: then it is seeded for each micro-batch."
        )
