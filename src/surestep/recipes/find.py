"""Find a recipe, and read from its source what `--help` needs, without running it or torch."""

import ast
import hashlib
import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from docstring_parser import parse as parse_docstring

from surestep.base.errors import RecipeError, suggest_names

BUILT_IN = (
    "chars",
    "digits",
    "distill",
    "finetune",
    "gan",
    "hf",
    "images",
    "imbalanced",
    "segment",
    "spiral",
    "tabular",
)
SHIPPED = Path(__file__).parent
COMPUTED = "computed by the recipe"  # the value of an option that the source does not show
NO_TASK = (
    "{path} has no function called task. Write: def task(hidden: int = 128) -> surestep.Task: ..."
)
_ADDS_NAMES = ("exec", "globals")  # functions that can bind any name


def recipe_argument(recorded: Mapping[str, str]) -> str:
    """Return a recorded recipe as it is typed in any folder: a built-in name, or its path.

    That of a module of a package is "/path/my.pkg.recipe".
    """
    path = Path(recorded["path"])  # not the name, which a folder that was received may invent
    if path.parent == SHIPPED and path.stem in BUILT_IN:
        return path.stem
    if recorded.get("package") and (package := _package_of(path)):  # nor the name of the package
        return str(path.parents[len(package)] / ".".join([*package, path.stem]))
    return recorded["path"]


class Parameter(NamedTuple):
    """A parameter of the recipe's function: its default as text (None: required), its docs."""

    default: str | None
    about: str


@dataclass(frozen=True)
class Outline:
    """What the source of a recipe shows.

    Attributes:
        name: of the recipe.
        doc: the module's docstring.
        parameters: of the recipe's function, by name; None if the source does not show them.
        options: of the recipe's config, by full name; COMPUTED if the value is not a literal.
    """

    name: str = ""
    doc: str | None = None
    parameters: Mapping[str, Parameter] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeFile:
    """A recipe that was found.

    Attributes:
        name: of the recipe.
        path: of its file.
        is_module: whether it was typed as a module of its package, "my.pkg.recipe".
    """

    name: str
    path: Path
    is_module: bool = False

    @cached_property
    def package(self) -> str:
        """The package to import it from, such as "my.pkg"; "" if by its own name.

        A path is ambiguous: a folder of scripts that import each other by name may have an
        __init__.py. So a file that was typed as a path is in a package if it has relative imports.

        Raises:
            RecipeError: it has relative imports, and its folder is not a package.
        """
        package = _package_of(self.path)
        if self.is_module:
            return ".".join(package)
        nodes = () if self._tree is None else ast.walk(self._tree)
        if not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes):
            return ""
        if not package:
            raise _relative_imports_error(self.path)
        return ".".join(package)

    @property
    def root(self) -> Path:
        """The folder that has its package, or the file itself."""
        return self.path.parents[len(_package_of(self.path))]

    @property
    def ships(self) -> bool:
        """Whether it is one of surestep's own."""
        return self.name in BUILT_IN and self.path.parent == SHIPPED

    @cached_property
    def _tree(self) -> ast.Module | None:
        """The source; None if it cannot be parsed: loading it says what is wrong."""
        try:
            return ast.parse(self.path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return None

    def check_task(self) -> None:
        """Reject a file that cannot bind a function to `task`, such as a script that trains.

        Raises:
            RecipeError: its source binds nothing to `task`, or only a Task.
        """
        tree = self._tree
        if tree is not None and not any(map(_may_bind_task, _list_module_nodes(tree))):
            raise RecipeError(NO_TASK.format(path=self.path))

    def outline(self) -> Outline:
        """Read what the source shows; a file that cannot be parsed shows nothing."""
        tree = self._tree
        if tree is None:
            return Outline(self.name)
        function, config = _bound(tree, "task"), _bound(tree, "config")
        assigned = isinstance(config, ast.Assign | ast.AnnAssign) and config.value
        options = dict(_options(assigned)) if assigned else {}
        return Outline(self.name, ast.get_docstring(tree), _parameters(function), options)


def find(name: str) -> RecipeFile:
    """Find a recipe: the name of one that ships, the path of a file, or "my.pkg.recipe".

    "/path/my.pkg.recipe" is a module of a package in that folder.

    Raises:
        RecipeError: there is none, it is a run folder, it has no function called task, or its name
            is a module's that is used already.
    """
    if name in BUILT_IN:
        return RecipeFile(name, SHIPPED / f"{name}.py")
    path = Path(name)
    if (path / "config.json").is_file():
        raise RecipeError(
            f"{name} is a run folder, not a recipe: {path / 'plan.json'} has its options with "
            f"values and reasons, and surestep resume {shlex.quote(name)} resumes it."
        )
    is_module = False
    if path.suffix != ".py" and not path.exists() and (found := _find_in_packages(path)):
        path, is_module = found, True
    if path.suffix != ".py":
        raise RecipeError(f"There is no recipe {name!r}. {_suggest(path)}")
    if not path.is_file():
        raise RecipeError(f"{name} does not exist. Built-in recipes: {', '.join(BUILT_IN)}.")
    path = path.resolve()
    recipe = RecipeFile(path.stem, path, is_module)
    if recipe.package:
        _check_package(recipe.root / recipe.package.partition(".")[0])
    else:
        _check_name(path)
    recipe.check_task()  # by its source, since running a script may train
    return recipe


def _suggest(path: Path) -> str:
    """Return what to type instead of a name or a path that is not a recipe."""
    name = str(path)
    if path.exists():
        return f"{suggest_names(name, BUILT_IN)} Give a .py file."
    file = next(_list_candidates(path), path.with_name(f"{path.name}.py"))
    folders = (candidate.parent for candidate in _list_candidates(path))
    package = next(filter(Path.is_dir, folders), None)
    if package is None:
        return f"{suggest_names(name, BUILT_IN)} Or give a file, such as {file}."
    prefix = name.rpartition(".")[0] + "."
    stems = sorted({module.stem for module in package.glob("*.py")} - {"__init__"})
    near = suggest_names(path.suffix[1:], stems, prefix)
    return f"{near} It would be the file {package / file.name}."


def _list_candidates(path: Path) -> Iterator[Path]:
    """Yield where the file of "my.pkg.recipe" or "/path/my.pkg.recipe" may be.

    Without a path, that is below the current folder or a folder on Python's path.
    """
    parts = path.name.split(".")
    if len(parts) < 2 or not all(map(str.isidentifier, parts)):
        return
    for folder in (str(path.parent), *(sys.path if path.parent == Path() else ())):
        yield Path(folder, *parts).with_suffix(".py")


def _find_in_packages(path: Path) -> Path | None:
    """Return the file of "my.pkg.recipe" or "/path/my.pkg.recipe"."""
    file = next(filter(Path.is_file, _list_candidates(path)), None)
    if file is not None and len(_package_of(file.resolve())) < path.name.count("."):
        raise RecipeError(
            f"{path} is {file}, and not each of its folders has an __init__.py. Add an empty one "
            f"to each, or pass the path: {file}"
        )
    return file


def _package_of(path: Path) -> list[str]:
    """Return the names of the packages that a file is in, the outer one first."""
    names: list[str] = []
    for folder in path.parents:
        if not (folder / "__init__.py").is_file() or not folder.name.isidentifier():
            break
        names.insert(0, folder.name)
    return names


def _relative_imports_error(path: Path) -> RecipeError:
    """Return the error for a file that has relative imports, and is not in a package."""
    folder = path.parent
    mend = f"Add an empty file {folder / '__init__.py'}"
    if not folder.name.isidentifier():
        mend = f"{folder.name!r} is not a Python name. Rename the folder, for example to "
        mend += _as_identifier(folder.name)
        if not (folder / "__init__.py").is_file():
            mend += ", and add an empty __init__.py"
    return RecipeError(
        f"{path.name} has relative imports, and its folder is not a package. {mend}, or import "
        "without the dot: the folder is on the path."
    )


def _check_package(folder: Path) -> None:
    """Reject an outer package under whose name Python would import something else."""
    if _is_taken(folder.name, folder / "__init__.py"):
        raise RecipeError(
            f"The package {folder} has the name of a module that is used already: {folder.name}. "
            f"Rename the folder, for example to my_{folder.name}."
        )


def _check_name(path: Path) -> None:
    """Reject a file under whose name Python would import something else."""
    name = path.stem
    if not name.isidentifier():
        raise RecipeError(
            f"{path.name} cannot be imported: {name!r} is not a Python name. Rename it, for "
            f"example to {_as_identifier(name)}.py."
        )
    if _is_taken(name, path):
        package = _package_of(path)
        module = f" Or type it as a module: {'.'.join([*package, name])}." if package else ""
        raise RecipeError(
            f"{path.name} has the name of a module that is used already: {name}. Rename it, for "
            f"example to my_{name}.py.{module}"
        )


def _as_identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"my_{plain}"


def _is_taken(name: str, path: Path) -> bool:
    """Return whether this name imports a different file."""
    taken = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    if taken is None:
        return False
    # Python's path may have a symbolic link to the folder.
    return taken.origin is None or Path(taken.origin).resolve() != path.resolve()


def _list_module_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported, and each `global` statement."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from (inner for inner in ast.walk(child) if isinstance(inner, ast.Global))
        elif not _makes_task(child):
            yield from _list_module_nodes(child)


def _may_bind_task(node: ast.AST) -> bool:
    """Return whether a node that runs may bind a function to `task`."""
    if isinstance(node, ast.Global):
        return "task" in node.names
    if isinstance(node, ast.Name):
        return node.id in _ADDS_NAMES or (node.id == "task" and isinstance(node.ctx, ast.Store))
    if isinstance(node, ast.alias):
        return (node.asname or node.name) in ("task", "*")
    return getattr(node, "name", None) in ("task", "__getattr__")


def _makes_task(node: ast.AST) -> bool:
    """Return whether a statement is `task = surestep.Task(...)`, which binds no function."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    return getattr(called, "attr", getattr(called, "id", None)) == "Task"


def _bound(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the statement that binds a name; None if there is not exactly one."""
    bound = [statement for statement in tree.body if _binds(statement, name)]
    return bound[0] if len(bound) == 1 else None


def _binds(node: ast.AST, name: str) -> bool:
    """Return whether a name of the module is bound, functions and classes inside left out."""
    if isinstance(node, ast.Name):
        return node.id == name and isinstance(node.ctx, ast.Store)
    if name in (getattr(node, "name", None), getattr(node, "asname", None)):
        return True
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return False
    return any(_binds(child, name) for child in ast.iter_child_nodes(node))


def _parameters(function: ast.AST | None) -> dict[str, Parameter] | None:
    """Return the parameters of a plain function; None of anything else."""
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return None
    arguments = function.args
    if arguments.vararg or arguments.kwarg:
        return None
    positional = [*arguments.posonlyargs, *arguments.args]
    required: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults = [*required, *arguments.defaults, *arguments.kw_defaults]
    about = parse_attributes(ast.get_docstring(function))
    return {
        argument.arg: Parameter(
            None if default is None else ast.unparse(default), about.get(argument.arg, "")
        )
        for argument, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True)
    }


def parse_attributes(doc: str | None) -> dict[str, str]:
    """Return the description of each parameter or attribute in a docstring."""
    parsed = parse_docstring(inspect.cleandoc(doc or ""))
    return {param.arg_name: (param.description or "").replace("\n", " ") for param in parsed.params}


def _options(value: ast.expr, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the options of `Config(epochs=1, optim=Optim(lr=0.1))` by full name."""
    if not isinstance(value, ast.Call):
        return
    for keyword in value.keywords:
        if keyword.arg is None:
            continue
        if isinstance(keyword.value, ast.Call) and not prefix:
            yield from _options(keyword.value, f"{keyword.arg}.")
            continue
        try:
            yield prefix + keyword.arg, ast.literal_eval(keyword.value)
        except ValueError:
            yield prefix + keyword.arg, COMPUTED


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
