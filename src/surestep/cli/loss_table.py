"""The table of losses, read from the source of the losses: it needs no torch.

The classes of the losses hold their row (`doc`) and their options, and import torch. Only the
constants and the classes are read from the source; nothing in it is run.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import surestep

_FOLDER = Path(surestep.__file__).parent / "engine" / "losses"
_PACKAGE = "surestep.engine.losses."


class _Module(NamedTuple):
    """What a source file shows: its constants and classes by name, also those that it imports."""

    constants: dict[str, Any]
    classes: dict[str, ast.ClassDef]


def loss_table() -> list[dict[str, Any]]:
    """Return the rows of `surestep.engine.losses.registry.loss_docs()`."""
    columns = [each.target.id for each in _fields(_read("base").classes["LossDoc"])]
    registry = ast.parse((_FOLDER / "registry.py").read_bytes())
    home = {
        each.name: (node.module or "").removeprefix(_PACKAGE)
        for node in registry.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE)
        for each in node.names
    }
    rows = []
    for name, loss in _entries(registry).items():
        module = _read(home[loss])
        texts = _guide(module, loss)
        row = dict(zip(columns, texts, strict=True))
        rows.append({"name": name, "call": f"{name}({_options(module, loss)})", **row})
    return rows


def _fields(of_class: ast.ClassDef) -> list[Any]:
    return [each for each in of_class.body if isinstance(each, ast.AnnAssign)]


def _entries(registry: ast.Module) -> dict[str, str]:
    """Return the class of each loss by the loss's name, from the CATALOG."""
    for node in registry.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "CATALOG":
            assert isinstance(node.value, ast.Dict)
            keys = [ast.literal_eval(each) for each in node.value.keys if each is not None]
            return dict(zip(keys, map(ast.unparse, node.value.values), strict=True))
    raise AssertionError("registry.py has no CATALOG")


@cache
def _read(module: str) -> _Module:
    """Read a source file, and what it imports from the others."""
    found = _Module({}, {})
    for node in ast.parse((_FOLDER / f"{module}.py").read_bytes()).body:
        match node:
            case ast.ImportFrom(module=str(other)) if other.startswith(_PACKAGE):
                theirs = _read(other.removeprefix(_PACKAGE))
                names = [each.name for each in node.names]
                for mine, all_of_them in zip(found, theirs, strict=True):
                    mine |= {name: all_of_them[name] for name in names if name in all_of_them}
            case ast.Assign(targets=[ast.Name(id=name)]):
                try:
                    found.constants[name] = _constant(node.value, found.constants)
                except ValueError:  # not a constant
                    continue
            case ast.ClassDef():
                found.classes[node.name] = node
    return found


def _constant(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """Return the value of a literal, of a constant, or of a constant's `format()`.

    Raises:
        ValueError: it is anything else.
    """
    match node:
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Call(func=ast.Attribute(value=text, attr="format"), args=args, keywords=[]):
            return _constant(text, names).format(*(_constant(each, names) for each in args))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _constant(left, names) + _constant(right, names)
        case ast.JoinedStr(values=parts):
            return "".join(str(_constant(each, names)) for each in parts)
        case ast.FormattedValue(value=value):
            return _constant(value, names)
    return ast.literal_eval(node)


def _guide(module: _Module, loss: str) -> list[Any]:
    for node in module.classes[loss].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "doc":
            assert isinstance(node.value, ast.Call)
            return [_constant(each, module.constants) for each in node.value.args]
    raise AssertionError(f"{loss} has no doc")


def _options(module: _Module, loss: str) -> str:
    """Return the options of a loss with their defaults, also inherited ones."""
    for node in module.classes[loss].body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return ", ".join(
                f"{option.arg}={_constant(default, module.constants)!r}"
                for option, default in given
                if default is not None
            )
    base = ast.unparse(module.classes[loss].bases[0])
    return _options(module, base) if base in module.classes else ""
