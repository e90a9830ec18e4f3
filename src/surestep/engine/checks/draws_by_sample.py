"""Random numbers that depend on the sample, so that parts of a batch draw what all of it draws.

A loss or model that draws can then be compared with parts of the batch exactly.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from surestep.engine.model.compile import DispatchMode
from surestep.engine.rng import ModelRNG, derive_seed, states_of_globals

_NO_ROW = 2**32 - 1  # in place of the number of a sample


class DrawsBySample:
    """Calls functions for some samples, each of which draws the same numbers in every call.

    That holds for operations of torch with a row for each sample. What else is drawn has the same
    seed in every call, and is the same if it does not depend on the number of samples.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._rng = ModelRNG(seed, device)
        self._drawn: dict[Hashable, set[Hashable]] = {}

    def call(self, key: Hashable, rows: Sequence[int], call: Callable[[], Any]) -> Any:
        """Return what a call of the function `key` returns for the samples `rows`."""
        self._rng.seed_for("trial", 0)
        with _Draws(self._rng, rows) as draws:
            result = call()
        # The states of the other generators differ if it drew more of their numbers.
        self._drawn.setdefault(key, set()).add((*draws.drawn, states_of_globals()))
        return result

    def were_the_same(self, *keys: Hashable) -> bool:
        """Return whether each of these functions drew the same in all its calls."""
        return all(len(self._drawn.get(key, ())) < 2 for key in keys)


class _Draws(DispatchMode):
    """Draws the rows of each random tensor separately, with seeds of their samples.

    Attributes:
        drawn: the operations, with what does not depend on the number of samples.
    """

    def __init__(self, rng: ModelRNG, rows: Sequence[int]) -> None:
        super().__init__()
        self._rng, self._rows = rng, rows
        self.drawn: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        if "generator" in kwargs:  # one of the user's, whose state would depend on the calls before
            kwargs["generator"] = None
        name, samples = func.overloadpacket.__name__, len(self._rows)
        shape = next(filter(None, map(_shape_of, args)), ())
        draws_samples = name == "multinomial" and len(shape) == 1
        dim = shape.index(samples) if samples in shape and not draws_samples else None
        rows: Sequence[int] = (_NO_ROW,)
        parts = [args]
        if dim is not None:
            rows = self._rows
            parts = [[_take(value, dim, row, samples) for value in args] for row in range(samples)]
        self.drawn.append(repr((name, dim, [_shape_of(value) or value for value in parts[0]])))
        results = []
        for row, part in zip(rows, parts, strict=True):
            self._seed(row)
            results.append(func(*part, **kwargs))
        if dim is None:
            return results[0]
        if name.endswith("_"):
            return args[0]
        if isinstance(results[0], Tensor):
            return torch.cat(results, dim)
        return tuple(torch.cat(tensors, dim) for tensors in zip(*results, strict=True))

    def _seed(self, row: int) -> None:
        seed = derive_seed("check", len(self.drawn) << 32 | row)
        for generator in self._rng.generators:
            generator.manual_seed(seed)


def _shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or that which an argument gives; None for other arguments."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    is_shape = isinstance(value, (list, tuple)) and all(type(size) is int for size in value)
    return tuple(value) if is_shape else None


def _take(value: Any, dim: int, row: int, samples: int) -> Any:
    """Return the part of an argument for one sample."""
    shape = _shape_of(value)
    if shape is None or shape[dim : dim + 1] != (samples,):
        return value
    if isinstance(value, Tensor):
        return value.narrow(dim, row, 1)
    return [*shape[:dim], 1, *shape[dim + 1 :]]
