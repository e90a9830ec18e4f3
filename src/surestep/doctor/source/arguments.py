"""Bind the arguments of a call to the parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import lru_cache

from surestep.doctor.source.values import (
    Collection,
    Constant,
    Definition,
    Function,
    Unknown,
    Value,
)


def bind_arguments(
    function: Function, args: tuple[Value, ...], keywords: Mapping[str, Value], *, is_entry: bool
) -> dict[str, Value]:
    """Return the value of each parameter.

    Args:
        function: that is called.
        args: positional arguments.
        keywords: keyword arguments.
        is_entry: no call is known, so all parameters are unknown.
    """
    spec = function.definition.args
    names = [arg.arg for arg in (*spec.posonlyargs, *spec.args)]
    everything = [*names, *(arg.arg for arg in spec.kwonlyargs)]
    file = function.file
    given: dict[str, Value] = {
        name: Unknown(name, node=function.definition, file=file) for name in everything
    }
    if not is_entry:
        given |= function.defaults
    if function.owner is not None and not function.has_decorator("staticmethod"):
        args = (function.owner, *args)
    given |= dict(zip(names, args, strict=False))
    given |= {name: value for name, value in keywords.items() if name in everything}
    if spec.vararg is not None:
        rest = list(args[len(names) :])
        given[spec.vararg.arg] = Collection("tuple", rest, is_complete=not is_entry, file=file)
    if spec.kwarg is not None:
        rest_names = [name for name in keywords if name not in everything]
        given[spec.kwarg.arg] = Collection(
            "dict",
            [keywords[name] for name in rest_names],
            tuple(Constant(name) for name in rest_names),
            not is_entry,
            file=file,
        )
    return given


@lru_cache(maxsize=10_000)
def is_generator(definition: Definition) -> bool:
    """Return whether a function yields, itself and not in a function inside it."""
    if isinstance(definition, ast.Lambda):
        return False
    waiting: list[ast.AST] = list(definition.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))
    return False
