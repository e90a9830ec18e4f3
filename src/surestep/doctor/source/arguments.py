"""How a function is called: its arguments, and whether it yields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from surestep.doctor.source.values import (
    Call,
    Class,
    Collection,
    Constant,
    Definition,
    Function,
    Scope,
    Unknown,
    Value,
)

_YIELD = re.compile("yield")
_ENTERS = frozenset(
    ("enter_context", "enter_async_context", "__enter__", "__aenter__", "set_grad_enabled")
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


def find_annotated(annotation: ast.expr | None, scope: Scope) -> Class | None:
    """Return the class of the project that an annotation names; None for anything else.

    `Net`, `"Net"`, `Optional[Net]` and `Net | None` name the class `Net`.
    """
    match annotation:
        case ast.Constant(value=str(text)) if text.isidentifier():
            found = scope.find(text)
        case ast.Name(id=name):
            found = scope.find(name)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return find_annotated(inner, scope)
        case ast.BinOp(left=inner, op=ast.BitOr(), right=ast.Constant(value=None)):
            return find_annotated(inner, scope)
        case _:
            return None
    return found if isinstance(found, Class) else None


def is_generator(function: Function) -> bool:
    """Return whether a function yields, itself and not in a function inside it."""
    may_yield = function.file is None or function.file.contains(_YIELD)
    return may_yield and _yields(function.definition)


@lru_cache(maxsize=10_000)
def _yields(definition: Definition) -> bool:
    return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in _traverse_own(definition))


@lru_cache(maxsize=10_000)
def can_follow_manager(definition: Definition) -> bool:
    """Return whether it is known what a function does before and after the body of a `with`.

    A generator yields once, in no branch and no loop. Nor does it, or a method, enter another
    context manager by a call, of which is not known when it ends.
    """
    if isinstance(definition, ast.Lambda):
        return False
    nodes = list(_traverse_own(definition))
    names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
    yields = [node for node in nodes if isinstance(node, (ast.Yield, ast.YieldFrom))]
    if names & _ENTERS or len(yields) > 1:
        return False
    body: list[ast.stmt] = definition.body if yields else []
    while body:
        around = next((s for s in body if any(node is yields[0] for node in ast.walk(s))), None)
        if not isinstance(around, (ast.With, ast.AsyncWith, ast.Try)):
            is_plain = isinstance(around, (ast.Expr, ast.Assign, ast.AnnAssign))
            return is_plain and isinstance(yields[0], ast.Yield)
        body = around.body
    return True


def is_manager(function: Function) -> bool:
    """Return whether a function is a context manager that is followed around a `with` body."""
    is_decorated = function.has_decorator("contextmanager", "asynccontextmanager")
    return is_decorated and can_follow_manager(function.definition)


def _traverse_own(definition: Definition) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside it."""
    waiting: list[ast.AST] = [] if isinstance(definition, ast.Lambda) else [*definition.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(node))


def find_step_hooks(registered: Iterable[Call], step: Call) -> Iterator[tuple[Function, Value]]:
    """Yield the hooks that run after the step of an optimizer, with the optimizer.

    Args:
        registered: the calls of `optimizer.register_step_post_hook`.
        step: a call; of the optimizer, or of a scaler that steps it.
    """
    for call in registered if step.path == ".step" else ():
        hook, optimizer = call.argument(0, "hook"), call.receiver
        is_stepped = any(optimizer is value for value in (step.receiver, *step.args))
        if optimizer is not None and is_stepped and isinstance(hook, Function):
            yield hook, optimizer
