"""Search what data, a model or a loss holds: attributes, elements, closures, globals and hooks."""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dis import get_instructions
from enum import Enum
from functools import cache, partial
from inspect import ismemberdescriptor, ismethod, ismodule, isroutine
from itertools import islice
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from surestep.base.user_code import is_installed_file

_READS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
# Limits of a search, however large the data is: it takes some milliseconds.
OBJECTS, MEMBERS, DEPTH = 2000, 64, 8
LEAVES = (Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, bool, type(None))
_NAMES = (str, bytes, int, float, complex, Enum, tuple, type(None))
OF_MODULE = vars(nn.Module()).keys() - {"_modules"}
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",  # of a parameter
)
Root = tuple[str, Any]  # the name of an object, and it
_Found = tuple[str, Any, int]  # the path to an object, it, and its depth


def search_objects(
    roots: Iterable[Root], visit: Callable[[str, Any, int], bool], known: Iterable[Any] = ()
) -> None:
    """Visit each object that the roots hold once, the nearest first.

    Attributes, lists, dicts and hooks of modules are searched, and for code that is not an
    installed package the closures and globals of functions: at most `OBJECTS`, last those below
    `DEPTH` and after the first `MEMBERS` of a list. Numbers, texts and arrays are not visited.

    Args:
        roots: where to begin.
        visit: called with the path to an object, such as "dataset.transform.rng", the object and
            its depth; returns whether to search what it holds.
        known: objects that are not visited.
    """
    near = deque((name, value, 0) for name, value in roots)
    far = deque[Iterator[_Found]]()
    visited = set(map(id, known))
    limit = OBJECTS + 2 * len(near)  # a root may be a module, with a dict of its children
    for path, value, depth in _near_first(near, far):
        if isinstance(value, LEAVES) or ismodule(value) or id(value) in visited:
            continue
        visited.add(id(value))
        if len(visited) > limit:
            break
        if not visit(path, value, depth):
            continue
        members = _placed(path, depth, members_of(value))
        if depth < DEPTH:
            near.extend(members)
        else:
            far.append(members)
        far.append(_placed(path, depth, _more_members(value)))


def roots_of(model: nn.Module, others: Mapping[str, Any]) -> list[Root]:
    """Return the modules of a model and of others, which are losses and functions by name."""
    roots: list[Root] = []
    for root, value in [("model", model), *others.items()]:
        if isinstance(value, nn.Module):
            modules = value.named_modules()
            roots += [(f"{root}.{name}" if name else root, module) for name, module in modules]
        else:
            roots.append((root, value))
    return roots


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


def members_of(value: Any) -> Iterator[tuple[str, Any]]:
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
    hidden = OF_MODULE if isinstance(value, nn.Module) else ()
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
    if not all(isinstance(member, LEAVES) for _, member in islice(elements, MEMBERS)):
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
    yield from ((f".__defaults__[{i}]", one) for i, one in enumerate(function.__defaults__ or ()))
    yield from ((f":{name}", one) for name, one in (function.__kwdefaults__ or {}).items())
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
    return is_own or name in sys.builtin_module_names or is_installed_file(file)
