"""Find a recipe and read its outline from the source, without running it. It needs no torch.

The outline is what `--help` and the parser of the command line need: they answer before torch is
imported. The recipe itself is run by `load.py`.
"""

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from docstring_parser import parse as parse_docstring

from surestep.base.errors import RecipeError, suggest_names
from surestep.recipes.parameters import plain_type

BUILT_IN = (
    "chars",
    "digits",
    "distill",
    "finetune",
    "gan",
    "hf",
    "imbalanced",
    "segment",
    "spiral",
    "tabular",
)
SHIPPED = Path(__file__).parent
COMPUTED = "computed by the recipe"  # the value of an option that only running the recipe tells


class Parameter(NamedTuple):
    """A parameter of the recipe's function, as its source shows it.

    Attributes:
        default: its text; None where the parameter must be set.
        about: what the docstring says of it.
        type: its type, if it is a plain one; None if only running the recipe tells.
    """

    default: str | None
    about: str
    type: Any = None


@dataclass(frozen=True)
class Outline:
    """What the source of a recipe shows.

    Attributes:
        doc: the module's docstring.
        parameters: of the recipe's function, by name; None where only running the recipe tells.
        options: of the recipe's config, by full name; those whose value is not a literal are
            COMPUTED.
    """

    doc: str | None = None
    parameters: Mapping[str, Parameter] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe that was found."""

    name: str
    path: Path

    @property
    def ships(self) -> bool:
        """Whether it is one of surestep's own."""
        return self.name in BUILT_IN and self.path.parent == SHIPPED

    def outline(self) -> Outline:
        """Read what the source shows; a file that cannot be parsed shows nothing."""
        try:
            tree = ast.parse(self.path.read_bytes())
        except (OSError, SyntaxError, ValueError):  # loading it says what is wrong
            return Outline()
        function, config = _bound(tree, "task"), _bound(tree, "config")
        assigned = isinstance(config, ast.Assign | ast.AnnAssign) and config.value
        options = dict(_options(assigned)) if assigned else {}
        return Outline(ast.get_docstring(tree), _parameters(function), options)


def find(name: str) -> RecipeFile:
    """Find a recipe: the name of one that ships, or the path of a file.

    Raises:
        RecipeError: there is none, or its name is a module's that is used already.
    """
    if name in BUILT_IN:
        return RecipeFile(name, SHIPPED / f"{name}.py")
    path = Path(name)
    if path.suffix != ".py":
        hint = f"Or give a file, such as {name}.py." if not path.exists() else "Give a .py file."
        raise RecipeError(f"There is no recipe {name!r}. {suggest_names(name, BUILT_IN)} {hint}")
    if not path.is_file():
        raise RecipeError(f"{name} is not there. Built-in recipes: {', '.join(BUILT_IN)}.")
    path = path.resolve()
    _check_name(path.stem, path)
    return RecipeFile(path.stem, path)


def _check_name(name: str, path: Path) -> None:
    """Refuse a name under which Python would import something else."""
    if not name.isidentifier():
        raise RecipeError(
            f"{path.name} cannot be imported: {name!r} is no Python name. Rename it, for example "
            f"to {_as_name(name)}.py."
        )
    taken = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    if taken is not None and taken.origin != str(path):
        raise RecipeError(
            f"{path.name} has the name of a module that is used already: {name}. Rename it, for "
            f"example to my_{name}.py."
        )


def _as_name(text: str) -> str:
    name = "".join(each if each.isalnum() else "_" for each in text)
    return name if name.isidentifier() else f"my_{name}"


def _bound(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the statement of the module that binds a name; None where it is not the only one."""
    binding = [node for node in _of_module(tree) if name in _names_bound_by(node)]
    # Of an assignment both the statement and its target bind the name.
    statements = [node for node in binding if not isinstance(node, ast.Name)]
    if len(statements) != 1 or len(binding) > 2 or statements[0] not in tree.body:
        return None
    only = statements[0]
    return only if isinstance(only, ast.stmt) else None


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _of_module(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of the module's own scope: those within functions and classes are not."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            yield from _of_module(child)


def _names_bound_by(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case ast.alias(name=name, asname=other):
            return (other or name,)
    return ()


def _parameters(function: ast.stmt | None) -> dict[str, Parameter] | None:
    """Return the parameters of a plain function; None of anything else."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    given = function.args
    if given.vararg or given.kwarg:
        return None
    by_place = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(by_place) - len(given.defaults))
    defaults = [*missing, *given.defaults, *given.kw_defaults]
    about = explained(ast.get_docstring(function))
    found = {}
    for each, value in zip([*by_place, *given.kwonlyargs], defaults, strict=True):
        default = None if value is None else ast.unparse(value)
        annotation = None if each.annotation is None else ast.unparse(each.annotation)
        kind = plain_type(annotation, default)
        found[each.arg] = Parameter(default, about.get(each.arg, ""), kind)
    return found


def explained(doc: str | None) -> dict[str, str]:
    """Return what a docstring says of each parameter."""
    found = parse_docstring(inspect.cleandoc(doc or "")).params
    return {each.arg_name: (each.description or "").replace("\n", " ") for each in found}


def _options(value: ast.expr, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of `Config(epochs=1, optim=Optim(lr=0.1))` by full name."""
    if not isinstance(value, ast.Call):
        return
    for each in value.keywords:
        if each.arg is None:
            continue
        if isinstance(each.value, ast.Call) and not prefix:
            yield from _options(each.value, f"{each.arg}.")
            continue
        try:
            yield prefix + each.arg, ast.literal_eval(each.value)
        except ValueError:
            yield prefix + each.arg, COMPUTED


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
