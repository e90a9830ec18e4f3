"""Generators that data keeps to itself: found, and seeded by place like the global ones.

A dataset or a transform that makes a generator in `__init__` draws from its history, so a run that
is gone on with, or one with other workers, would draw otherwise, and nobody would see it. What is
found is seeded before each sample. What is not found can have `set_sample_seed(seed)`.
"""

import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from inspect import ismemberdescriptor, ismethod, ismodule, isroutine
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

HOOK = "set_sample_seed"
# A walk ends here, however large the data is: it takes some milliseconds at the most.
OBJECTS, MEMBERS, DEPTH = 2000, 64, 8
_LEAVES = (Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, bool, type(None), type)
_INSTALLED = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_SEEDED: tuple[Any, ...] = (  # with the global functions, whose methods they have
    torch.default_generator,
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.random.__self__,  # type: ignore[attr-defined]
)


class DatasetRNG(NamedTuple):
    """A generator that data holds, and how to seed it.

    Attributes:
        path: where it was found, such as "dataset.transform.rng".
        kind: its type's name, or the hook's.
        seed: takes a seed; None where it takes none.
        salt: two of one dataset draw differently: this is mixed into their seed.
        state: returns its state; None where that cannot be read.
    """

    path: str
    kind: str
    seed: Callable[[int], object] | None
    salt: int
    state: Callable[[], Any] | None = None

    def reseed(self, seed: int) -> None:
        """Seed it for a place."""
        if self.seed is not None:
            self.seed(seed ^ self.salt)


@dataclass(frozen=True)
class LoadingSeedInfo:
    """How the randomness of loading is seeded.

    Attributes:
        sliced: tensors in memory, of which nothing is drawn.
        together: what sees several samples at once, so that the first position seeds it.
        own: generators that the data keeps to itself, and that are seeded too.
        unseeded: those that take no seed.
    """

    sliced: bool = False
    together: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    unseeded: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """Say what is seeded for several samples at once."""
        return " and ".join(self.together) + (" draw" if len(self.together) > 1 else " draws")

    @property
    def also(self) -> str:
        """Name the data's own generators, which are seeded with the rest."""
        return f"; own generators too: {', '.join(self.own)}" if self.own else ""


class DatasetRNGs:
    """The generators that data holds, by the names of what is looked through.

    Attributes, lists and dicts are looked through, and of code that is not an installed package
    the variables that functions close over and the globals that they name; so far as `OBJECTS`,
    `MEMBERS` and `DEPTH` allow. What has the hook is not looked into.
    """

    def __init__(self, **roots: Any) -> None:
        self.roots = roots
        self.found: list[DatasetRNG] = []
        self._watched: list[tuple[dict[Any, Any], int, list[Any]]] = []
        self._find()

    def reseed(self, seed: int) -> None:
        """Seed them for a place."""
        for each in self.found:
            each.reseed(seed)

    def has_new(self) -> bool:
        """Say whether there is one that was not there before, and so was not seeded.

        Many are made by the first load in a process, where `self.rng is None`. So attributes that
        were None are watched, and how many there are; that takes a microsecond.
        """
        for members, count, empty in self._watched:  # `any` over a generator takes six times that
            if len(members) != count or (empty and _are_filled(members, empty)):
                before = len(self.found)
                self._find()
                return len(self.found) > before
        return False

    def _find(self) -> None:
        self.found, self._watched = [], []
        waiting = [(name, each, 0) for name, each in self.roots.items()]
        seen = set(map(id, _SEEDED))
        paths: Counter[str] = Counter()
        for path, value, depth in waiting:  # grows while it is walked
            if isinstance(value, _LEAVES) or ismodule(value) or id(value) in seen:
                continue
            seen.add(id(value))
            if len(seen) > OBJECTS:
                break
            own = _own(path, value, paths)
            if own is not None:
                self.found.append(own)
            elif depth < DEPTH:
                waiting.extend((path + at, each, depth + 1) for at, each in _members(value))
                self._watch(value)

    def _watch(self, value: Any) -> None:
        members = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if isinstance(members, dict) and len(members) <= MEMBERS > len(self._watched):
            empty = [name for name, each in members.items() if each is None]
            self._watched.append((members, len(members), empty))


def _are_filled(members: dict[Any, Any], names: list[Any]) -> bool:
    return any(members.get(name) is not None for name in names)


def _own(path: str, value: Any, paths: Counter[str]) -> DatasetRNG | None:
    kind, seed = type(value).__name__, _seeding(value)
    if seed is None and not isinstance(value, random.SystemRandom):
        return None
    paths[path] += 1
    if paths[path] > 1:  # an attribute of a class and one of its object have the same path
        path = f"{path}#{paths[path]}"
    salt = int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little") >> 1
    return DatasetRNG(path, kind, seed, salt, _state_reader(value))


def _seeding(value: Any) -> Callable[[int], object] | None:
    """Return what seeds a generator; None where it is none, or takes no seed."""
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


def _state_reader(value: Any) -> Callable[[], Any] | None:
    """Return what reads the state of a generator; None where it has none that can be read."""
    if callable(getattr(type(value), HOOK, None)) or isinstance(value, random.SystemRandom):
        return None
    if isinstance(value, torch.Generator):
        return lambda: value.get_state().numpy()
    if isinstance(value, random.Random):
        return value.getstate
    if isinstance(value, np.random.RandomState):
        return lambda: value.get_state(legacy=False)
    bits = value.bit_generator if isinstance(value, np.random.Generator) else value
    return lambda: bits.state


def is_same_state(one: Any, other: Any) -> bool:
    """Return whether two states of one generator are equal."""
    if isinstance(one, Mapping):
        return all(is_same_state(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


def _seed_bits(bits: np.random.BitGenerator, seed: int) -> None:
    # A bit generator has no method for it, and others may hold this very one.
    bits.state = type(bits)(seed).state


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with how one gets there."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", each) for key, each in islice(value.items(), MEMBERS))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", each) for i, each in enumerate(islice(value, MEMBERS)))
    if isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif ismethod(value):
        yield ".__self__", value.__self__
        yield "", value.__func__
    elif isroutine(value):
        yield from _named_by(value)
    else:
        yield from _of_class(value)
    for name, each in list(getattr(value, "__dict__", {}).items())[:OBJECTS]:
        yield f".{name}", each


def _of_class(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object has by its class: its slots, the class's own, and its methods."""
    for each in type(value).__mro__:
        if _is_installed(sys.modules.get(each.__module__)):
            continue
        for name, member in list(vars(each).items()):
            if ismemberdescriptor(member):
                member = getattr(value, name, None)
            if not name.startswith("__") or isroutine(member):
                yield f".{name}", member


def _named_by(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function closes over, and the globals that it names.

    Not of libraries, whose generators may serve other ends: Hugging Face's datasets draw the names
    of files from one.
    """
    code = getattr(function, "__code__", None)
    if code is None or _is_installed(sys.modules.get(function.__module__)):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f":{name}", cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield f":{name}", function.__globals__[name]


def is_installed(kind: type) -> bool:
    """Return whether a class is Python's or of a package that was installed."""
    return _is_installed(sys.modules.get(kind.__module__))


def _is_installed(module: ModuleType | None) -> bool:
    """Say whether a module is Python's or a package that was installed, and not the user's own."""
    if module is None:
        return False
    file = getattr(module, "__file__", None) or ""
    return module.__name__ in sys.builtin_module_names or file.startswith(_INSTALLED)
