"""Generators that data, a model or a loss owns: found, and seeded by position like the global ones.

A dataset or a transform that makes a generator in `__init__` draws from its history, so a resumed
run, or one with a different number of workers, would silently draw other numbers. Generators that
are found are seeded before each sample or micro-batch. For other random state, a class can have
`set_sample_seed(seed)`.
"""

import random
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from inspect import ismemberdescriptor, ismethod, ismodule, isroutine
from itertools import islice
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.base.warn import warn

HOOK = "set_sample_seed"
# Limits of a search, however large the data is: it takes some milliseconds.
OBJECTS, MEMBERS, DEPTH = 2000, 64, 8
_LEAVES = (Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, bool, type(None), type)
_INSTALLED = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_GLOBAL: tuple[Any, ...] = (  # seeded with the global functions, which are their methods
    torch.default_generator,
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.random.__self__,  # type: ignore[attr-defined]
)
_OF_MODULE = frozenset(vars(nn.Module()))
_FIX_DRAWS = (
    "Draw from torch's, numpy's or Python's global generator, or set "
    "activation_checkpointing='off'."
)


class DatasetRNG(NamedTuple):
    """A generator that data or a model owns, and how to seed it.

    Attributes:
        path: where it was found, such as "dataset.transform.rng".
        kind: the name of its type.
        seed: takes a seed; None if it takes none.
        salt: mixed into the seed, so that two generators draw different numbers.
        state: returns its state; None if that cannot be read.
    """

    path: str
    kind: str
    seed: Callable[[int], object] | None
    salt: int
    state: Callable[[], Any] | None = None

    def reseed(self, seed: int) -> None:
        """Seed it for a position."""
        if self.seed is not None:
            self.seed(seed ^ self.salt)


class Seeded(NamedTuple):
    """A generator with the interface of torch's."""

    own: DatasetRNG

    def manual_seed(self, seed: int) -> None:
        """Seed it for a position."""
        self.own.reseed(seed)


@dataclass(frozen=True)
class LoadingSeedInfo:
    """How the loading of the training data is seeded.

    Attributes:
        sliced: tensors in memory, whose loading draws nothing.
        together: what gets several samples at once, so that the first position seeds it.
        own: generators that the data owns, which are seeded too.
        unseeded: those that take no seed.
    """

    sliced: bool = False
    together: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    unseeded: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """Describe what is seeded for several samples at once."""
        return " and ".join(self.together) + (" draw" if len(self.together) > 1 else " draws")

    @property
    def also(self) -> str:
        """Name the data's own generators."""
        return f"; own generators too: {', '.join(self.own)}" if self.own else ""


class DatasetRNGs:
    """The generators that objects own, by the names of these objects.

    Attributes, lists and dicts are searched, and for code that is not an installed package the
    closures and globals of functions, within `OBJECTS`, `MEMBERS` and `DEPTH`. An object with the
    hook is not searched.
    """

    def __init__(self, **roots: Any) -> None:
        self.roots = roots
        self.found: list[DatasetRNG] = []
        self._watched: list[tuple[dict[Any, Any], int, list[Any]]] = []
        self._find()

    def reseed(self, seed: int) -> None:
        """Seed them for a position."""
        for rng in self.found:
            rng.reseed(seed)

    def has_new(self) -> bool:
        """Return whether one was created since the search, so it was not seeded.

        Many are created by the first load of a process, `if self.rng is None`. So the number of
        attributes is watched, and those that were None; that takes a microsecond.
        """
        for members, count, empty in self._watched:  # `any` over a generator takes six times that
            if len(members) != count or (empty and _are_filled(members, empty)):
                before = len(self.found)
                self._find()
                return len(self.found) > before
        return False

    def _find(self) -> None:
        self.found, self._watched = [], []
        waiting = [(name, value, 0) for name, value in self.roots.items()]
        visited = set(map(id, _GLOBAL))
        paths: Counter[str] = Counter()
        for path, value, depth in waiting:  # grows in the loop
            if isinstance(value, _LEAVES) or ismodule(value) or id(value) in visited:
                continue
            visited.add(id(value))
            if len(visited) > OBJECTS:
                break
            own = _as_generator(path, value, paths)
            if own is not None:
                self.found.append(own)
            elif depth < DEPTH:
                waiting.extend((path + at, member, depth + 1) for at, member in _members(value))
                self._watch(value)

    def _watch(self, value: Any) -> None:
        members = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if isinstance(members, dict) and len(members) <= MEMBERS > len(self._watched):
            empty = [name for name, member in members.items() if member is None]
            self._watched.append((members, len(members), empty))


def _are_filled(members: dict[Any, Any], names: list[Any]) -> bool:
    return any(members.get(name) is not None for name in names)


def _as_generator(path: str, value: Any, paths: Counter[str]) -> DatasetRNG | None:
    kind, seed = type(value).__name__, _seed_function(value)
    if seed is None and not isinstance(value, random.SystemRandom):
        return None
    paths[path] += 1
    if paths[path] > 1:  # an attribute of a class and one of its object have the same path
        path = f"{path}#{paths[path]}"
    salt = int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "little") >> 1
    return DatasetRNG(path, kind, seed, salt, _state_function(value))


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


def _state_function(value: Any) -> Callable[[], Any] | None:
    """Return what reads the state of a generator, or None."""
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


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return all(_is_same_state(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the path to it."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", member) for key, member in islice(value.items(), MEMBERS))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", member) for i, member in enumerate(islice(value, MEMBERS)))
    if isinstance(value, partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif ismethod(value):
        yield ".__self__", value.__self__
        yield "", value.__func__
    elif isroutine(value):
        yield from _function_members(value)
    else:
        yield from _class_members(value)
    for name, member in list(getattr(value, "__dict__", {}).items())[:OBJECTS]:
        yield f".{name}", member


def _class_members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object has by its class: slots, class attributes and methods."""
    for kind in type(value).__mro__:
        if _is_installed(sys.modules.get(kind.__module__)):
            continue
        for name, member in list(vars(kind).items()):
            if ismemberdescriptor(member):
                member = getattr(value, name, None)
            if not name.startswith("__") or isroutine(member):
                yield f".{name}", member


def _function_members(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function closes over, and the globals that it names.

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
    for name in code.co_names:
        if name in function.__globals__:
            yield f":{name}", function.__globals__[name]


def _is_installed(module: ModuleType | None) -> bool:
    """Return whether a module is Python's or of an installed package."""
    if module is None:
        return False
    file = getattr(module, "__file__", None) or ""
    return module.__name__ in sys.builtin_module_names or file.startswith(_INSTALLED)


def own_generators(model: nn.Module | None, others: Mapping[str, Any]) -> DatasetRNGs:
    """Find the generators of a model, in attributes and methods of its modules, and of others.

    `others` are losses and functions by name.
    """
    roots: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        free, number = name, 1
        while free in roots and roots[free] is not value:  # two classes may have one name
            number += 1
            free = f"{name}#{number}"
        roots[free] = value

    for name, value in [("model", model), *others.items()]:
        if isinstance(value, nn.Module):
            for path, member in _module_members(value, name):
                add(path, member)
        elif value is not None:
            add(name, value)
    return DatasetRNGs(**roots)


def _module_members(model: nn.Module, root: str) -> Iterator[tuple[str, Any]]:
    """Yield what may hold a generator: attributes that are not torch's, and methods."""
    visited: set[type] = set()
    for name, module in model.named_modules():
        path = f"{root}.{name}" if name else root
        for key, value in vars(module).items():
            if key not in _OF_MODULE and not isinstance(value, (Tensor, nn.Module)):
                yield f"{path}.{key}", value
        for kind in type(module).__mro__:
            if kind not in visited and not _is_installed(sys.modules.get(kind.__module__)):
                for key, value in vars(kind).items():
                    yield f"{kind.__qualname__}.{key}", value
            visited.add(kind)


def check_own_generators(
    found: DatasetRNGs, checkpointing: str, compiles: bool
) -> list[DatasetRNG]:
    """Check that what is drawn from a model's generators can be drawn again in a recomputation.

    Returns:
        Those that `forbid_draws` watches in each recomputation.

    Raises:
        TaskError: the forward is computed twice, and draws of the second cannot be watched.
    """
    watched = found.found if checkpointing != "off" else []
    for rng in watched:
        if compiles or rng.state is None:
            raise TaskError(
                f"activation_checkpointing={checkpointing!r} computes the forward twice, and the "
                f"second one may draw different numbers from {rng.path}. {_FIX_DRAWS}"
            )
    for rng in found.found:
        if rng.seed is None:
            warn(
                f"{rng.path} ({rng.kind}) takes no seed, so a resumed run draws other numbers. "
                "Use random.Random, numpy.random.default_rng() or torch.Generator."
            )
    return watched


@contextmanager
def forbid_draws(watched: Sequence[DatasetRNG]) -> Iterator[None]:
    """Recompute a forward within this; raise TaskError if it draws from one of `watched`."""
    states = [(rng, rng.state, rng.state()) for rng in watched if rng.state is not None]
    try:
        yield
    finally:  # torch leaves a recomputation by an exception when it has all that it needs
        for rng, read_state, before in states:
            if not _is_same_state(before, read_state()):
                raise TaskError(
                    "activation_checkpointing computes the forward twice, and the second one drew "
                    f"different numbers from {rng.path}. {_FIX_DRAWS}"
                )


def find_late(found: DatasetRNGs, generators: list[Any]) -> Callable[[], None]:
    """Return a function to call after the first step: it warns of generators made in that step.

    It appends them to `generators`, to be seeded from the next micro-batch on.
    """

    def find() -> None:
        before = {rng.path for rng in found.found}
        if not found.has_new():
            return
        late = [rng for rng in found.found if rng.path not in before]
        generators.extend(map(Seeded, late))
        if late:
            warn(
                f"{late[0].path} ({late[0].kind}) was made in the first step. So the first step of "
                "a resumed run draws other numbers. Make it in __init__: then it is seeded for "
                "each micro-batch."
            )

    return find
