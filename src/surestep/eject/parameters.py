"""The parameters of `task` in a script: those that its lines still use."""

import ast
import re

from surestep.eject.layout import WIDTH


def remove_unused(text: str) -> str:
    """Return the source of a recipe whose `task` has no parameter that nothing reads.

    The loss that read one may be printed with numbers, and a change of it would then do nothing.
    """
    function = find_task(text)
    used = {
        node.id
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    own = function.args
    kept = [one for one in own.args if one.arg in used]
    if len(kept) == len(own.args) or own.posonlyargs or own.kwonlyargs or own.vararg or own.kwarg:
        return text
    defaults = dict(zip(reversed(own.args), reversed(own.defaults), strict=False))
    parameters = [_write(text, one, defaults.get(one)) for one in kept]
    lines = text.splitlines()
    first, last = function.lineno - 1, function.body[0].lineno - 1
    body = "\n".join(lines[last : function.end_lineno])
    for one in own.args:
        if one not in kept:
            body = re.sub(rf"^        {one.arg}: .*\n(?:         +.*\n)*", "", body, flags=re.M)
    body = re.sub(r'\n\n    Args:\n(?=    """)', "\n", body)
    body = re.sub(r'^(    """.+)\n    """$', r'\1"""', body, count=1, flags=re.M)
    new = [*lines[:first], _write_head(parameters), body, *lines[function.end_lineno :]]
    return "\n".join(new) + "\n"


def find_task(text: str) -> ast.FunctionDef:
    """Return the function `task` of a recipe."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "task":
            return node
    raise AssertionError("the recipe has no task")


def _write(text: str, parameter: ast.arg, default: ast.expr | None) -> str:
    written = ast.get_source_segment(text, parameter)
    assert written is not None
    if default is None:
        return written
    equals = " = " if parameter.annotation is not None else "="
    return f"{written}{equals}{ast.get_source_segment(text, default)}"


def _write_head(parameters: list[str]) -> str:
    line = f"def task({', '.join(parameters)}) -> Parts:"
    if len(line) <= WIDTH:
        return line
    return "\n".join(["def task(", *(f"    {one}," for one in parameters), ") -> Parts:"])
