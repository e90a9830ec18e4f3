"""The tensors of the user's code that stay in memory from step to step, by the path to them."""

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from inspect import ismodule, isroutine
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from surestep.base.user_code import is_recipe_file, is_user_file
from surestep.engine.object_search import Root, members_of, search_objects
from surestep.engine.profile.saved_tensors import GraphCounter, StorageCounter

# Not each Mapping: the values of a custom one may be read from a disk.
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)
_NAMED = 8  # keys of a dict that are in the paths; those of a larger one are "[]"
_ELEMENT = re.compile(r"\[\d+\]")


@dataclass(frozen=True)
class KeptTensors:
    """Tensors or arrays that an object holds.

    Attributes:
        path: to them; "[]" is each element of a list: "KeepLosses.losses[]".
        count: how many.
        bytes: their own.
        with_graph: how many of them keep their graphs.
        graph_bytes: what only these graphs store.
    """

    path: str
    count: int
    bytes: int
    with_graph: int = 0
    graph_bytes: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.bytes + self.graph_bytes


def find_kept(
    roots: Iterable[Root], counter: StorageCounter, graphs: GraphCounter
) -> list[KeptTensors]:
    """Return what objects hold that was not counted before, the largest first.

    Args:
        roots: where to begin, by name: models, callbacks, datasets, functions, variables.
        counter: has counted the weights, the gradients, and what else is not of the user's code.
        graphs: has counted the graph of the current step.
    """
    found: dict[str, list[Any]] = {}

    def visit(path: str, value: Any, depth: int) -> bool:
        if _is_own_object(value):
            return False
        for at, member in _list_arrays(value):
            found.setdefault(_ELEMENT.sub("[]", path + at), []).append(member)
        return True

    roots = list(roots)
    search_objects(roots, visit)
    for path, value in roots:
        if isinstance(value, (Tensor, np.ndarray)):
            found.setdefault(path, []).append(value)
    kept = (_count(path, arrays, counter, graphs) for path, arrays in found.items())
    return sorted((one for one in kept if one.total), key=lambda one: one.total, reverse=True)


def _is_own_object(value: Any) -> bool:
    """Return whether a value is one of surestep, such as a session: all it holds is known."""
    module = sys.modules.get(getattr(type(value), "__module__", None) or "")
    file = getattr(module, "__file__", None) or ""
    package = __name__.partition(".")[0]
    is_own = getattr(module, "__name__", "").partition(".")[0] == package
    return is_own and not is_recipe_file(file)


def _list_arrays(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and arrays that an object itself holds, with the path from it."""
    if isinstance(value, dict) and len(value) <= _NAMED and all(map(_is_name, value)):
        yield from ((f"[{key!r}]", value[key]) for key in value if _is_array(value[key]))
    elif isinstance(value, _CONTAINERS):
        members = value.values() if isinstance(value, dict) else value
        yield from (("[]", member) for member in members if _is_array(member))
    else:
        yield from ((at, member) for at, member in members_of(value) if _is_array(member))


def _is_name(key: Any) -> bool:
    return isinstance(key, str)


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray))


def _count(
    path: str, arrays: list[Any], counter: StorageCounter, graphs: GraphCounter
) -> KeptTensors:
    graphed = [one for one in arrays if isinstance(one, Tensor) and one.grad_fn is not None]
    own = counter.add(arrays)
    return KeptTensors(path, len(arrays), own, len(graphed), graphs.add(graphed).total())


def user_variables(frame: FrameType | None) -> Iterator[Root]:
    """Yield the variables of the user's code that runs, by "function.name", and of its modules.

    Args:
        frame: the innermost; those that called it follow.
    """
    while frame is not None:
        code = frame.f_code
        if is_user_file(code.co_filename) and code.co_name != "<module>":
            yield from ((f"{code.co_name}.{name}", one) for name, one in frame.f_locals.items())
        frame = frame.f_back
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_user_file(file):
            for name, value in list(vars(module).items()):
                is_code = isroutine(value) or ismodule(value) or isinstance(value, type)
                if not (is_code or name.startswith("__")):
                    yield f"{Path(file).stem}.{name}", value
