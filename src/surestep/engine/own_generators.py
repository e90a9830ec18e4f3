"""Generators that data, a model or a loss owns: found, and seeded by position like the global ones.

A dataset or a transform that makes a generator in `__init__` draws from its history, so a resumed
run, or one with a different number of workers, would silently draw other numbers. Generators that
are found are seeded before each sample or micro-batch. For other random state, a class can have
`set_sample_seed(seed)`.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.object_search import (
    DEPTH,
    LEAVES,
    MEMBERS,
    OF_MODULE,
    Root,
    roots_of,
    search_objects,
)

HOOK = "set_sample_seed"
_GLOBAL: tuple[Any, ...] = (  # seeded with the global functions, which are their methods
    torch.default_generator,
    random.random.__self__,  # type: ignore[attr-defined]
    np.random.random.__self__,  # type: ignore[attr-defined]
)


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

    See `search_objects` for where they are found. An object with `HOOK` is not searched.
    """

    def __init__(self, *roots: Root) -> None:
        self.roots = roots
        self.found: list[OwnGenerator] = []
        self._watched: list[tuple[dict[Any, Any], int, list[Any]]] = []
        self._held: list[tuple[dict[Any, Any], Any, Any]] | None = None
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
        if not self._has_new_members():
            return False
        before = len(self.found)
        self._find()
        return len(self.found) > before

    def refresh(self) -> list[OwnGenerator]:
        """Return the generators; search again if an object was added or replaced meanwhile.

        The search takes some milliseconds, and the comparison of what the objects hold a tenth.
        """
        if self._held is not None:
            is_replaced = any(
                members.get(name) is not member for members, name, member in self._held
            )
            if not is_replaced and not self._has_new_members():
                return self.found
            self._find()
        self._held = [
            (members, name, member)
            for members, *_ in self._watched
            for name, member in members.items()
            if name not in OF_MODULE and not isinstance(member, LEAVES)
        ]
        return self.found

    def _has_new_members(self) -> bool:
        return any(
            len(members) != count or any(members.get(name) is not None for name in empty)
            for members, count, empty in self._watched
        )

    def _find(self) -> None:
        self.found, self._watched = [], []
        paths: Counter[str] = Counter()

        def visit(path: str, value: Any, depth: int) -> bool:
            own = _as_generator(path, value, paths)
            if own is not None:
                self.found.append(own)
            elif depth < DEPTH:
                self._watch(value)
            return own is None

        search_objects(self.roots, visit, known=_GLOBAL)

    def _watch(self, value: Any) -> None:
        members = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        limit = MEMBERS + 2 * len(self.roots)  # all roots: a loss comes after the model's modules
        if isinstance(members, dict) and len(members) <= MEMBERS and len(self._watched) < limit:
            empty = [name for name, member in members.items() if member is None]
            self._watched.append((members, len(members), empty))


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


def copy_states(*roots: Root) -> list[Callable[[], object]]:
    """Copy the states of the generators that objects own; return what restores each."""
    restores: list[Callable[[], object]] = []

    def visit(path: str, value: Any, depth: int) -> bool:
        if (restore := _copy_state(value)) is not None:
            restores.append(restore)
        return restore is None

    search_objects(roots, visit, known=_GLOBAL)
    return restores


def _copy_state(value: Any) -> Callable[[], object] | None:
    """Return what restores the state of a generator; None for anything else."""
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return partial(value.setstate, value.getstate())
    if isinstance(value, np.random.RandomState):
        return partial(value.set_state, value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        value = value.bit_generator
    if isinstance(value, np.random.BitGenerator):
        return partial(setattr, value, "state", value.state)
    return None


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


def own_generators(model: nn.Module, others: Mapping[str, Any]) -> OwnGenerators:
    """Find the generators of a model and of others, which are losses and functions by name."""
    return OwnGenerators(*roots_of(model, others))


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
