"""The source of a recipe without surestep: the function `task` returns the parts of its Task."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

from surestep.base.errors import RecipeError
from surestep.eject.layout import format_call
from surestep.eject.source import Source, Statement, read_source
from surestep.engine.task.task import Task

_FIELDS = tuple(field.name for field in fields(Task))
_TASK, _WHOLE_SET = ("surestep.Task",), ("surestep.whole_set",)
_INIT = ("surestep.InitWeights",)
_INLINED = "surestep.recipes."
_WORKER = ".get_worker_info"
# Statements whose values a script does not need.
_CONFIGURES = ("config", "callbacks", "trackers")


@dataclass(frozen=True)
class TaskCall:
    """The call `surestep.Task(...)` in a recipe.

    Attributes:
        text: source of the file.
        source: its statements.
        function: `task`.
        returned: the statement that returns the Task.
        arguments: of the call, by name.
    """

    text: str
    source: Source
    function: ast.FunctionDef
    returned: ast.Return
    arguments: Mapping[str, ast.expr]

    def argument_text(self, name: str) -> str:
        """Return the source of an argument."""
        return self.text_of(self.arguments[name])

    def text_of(self, node: ast.expr) -> str:
        """Return the source of an expression."""
        text = ast.get_source_segment(self.text, node)
        assert text is not None
        return text


def read_task_call(path: Path) -> TaskCall:
    """Find the call `surestep.Task(...)` in a recipe.

    Raises:
        RecipeError: `task` does not have exactly one, in `return surestep.Task(...)`.
    """
    try:
        text = path.read_text(encoding="utf-8")
        source = read_source(text)
    except (OSError, SyntaxError, ValueError) as error:
        raise RecipeError(
            f"{path} cannot be read as source: {error}. Eject needs a file."
        ) from error
    statement = source.find("task")
    if statement is None or not isinstance(statement.node, ast.FunctionDef):
        raise RecipeError(
            f"{path}: the source shows no function `def task(...)`, which is made differently, "
            "such as by exec. Write it as a function at the top of the file."
        )
    function = statement.node
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    calls = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and source.resolve(node.func) in _TASK
    ]
    returned = [one for one in returns if one.value in calls]
    if len(calls) != 1 or len(returned) != 1:
        raise RecipeError(
            f"{path}: task() makes {len(calls)} Tasks, and eject needs one, in "
            "`return surestep.Task(...)`. Write task() so."
        )
    return TaskCall(text, source, function, returned[0], _arguments_of(path, calls[0]))


def _arguments_of(path: Path, call: ast.Call) -> dict[str, ast.expr]:
    if any(isinstance(one, ast.Starred) for one in call.args) or any(
        one.arg is None for one in call.keywords
    ):
        raise RecipeError(
            f"{path}, line {call.lineno}: the arguments of Task(...) are passed with a star, and "
            "the source does not show them. Write each by its name."
        )
    named = {one.arg: one.value for one in call.keywords if one.arg is not None}
    return dict(zip(_FIELDS, call.args, strict=False)) | named


def list_metrics(call: TaskCall) -> dict[str, str]:
    """Return the source of each metric by its name, without `surestep.whole_set`.

    Raises:
        RecipeError: they are not written as a dict in the call.
    """
    given = call.arguments.get("metrics")
    if given is None:
        return {}
    keys = given.keys if isinstance(given, ast.Dict) else [None]
    if not isinstance(given, ast.Dict) or not all(
        isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys
    ):
        raise RecipeError(
            f"Task(metrics={call.text_of(given)}) does not show which metrics there are. Write a "
            'dict in the call: metrics={"accuracy": accuracy}.'
        )
    return {
        str(key.value): call.text_of(_function_of(call, value))
        for key, value in zip(given.keys, given.values, strict=True)
        if isinstance(key, ast.Constant)
    }


def _function_of(call: TaskCall, value: ast.expr) -> ast.expr:
    """Return what `surestep.whole_set(function, ...)` is given; else the value itself."""
    if isinstance(value, ast.Call) and call.source.resolve(value.func) in _WHOLE_SET:
        if any(one.arg == "preprocess" for one in value.keywords) or len(value.args) != 1:
            raise RecipeError(
                f"{call.text_of(value)} has a preprocess, which eject does not print. Leave it "
                "out, or leave the metric out."
            )
        return value.args[0]
    return value


def replace_task(call: TaskCall, parts: Mapping[str, str]) -> str:
    """Return the source of the recipe, whose `task` returns `Parts(...)`.

    Args:
        call: in the recipe.
        parts: the source of each part.
    """
    lines = call.text.splitlines()
    arguments = [f"{name}={text}" for name, text in parts.items()]
    first, last = call.returned.lineno - 1, call.returned.end_lineno
    depth = call.returned.col_offset
    new = format_call("Parts", arguments, depth=depth, start="return ")
    annotation = call.function.returns
    if annotation is not None and annotation.end_lineno is not None:
        row = annotation.lineno - 1
        start, end = annotation.col_offset, annotation.end_col_offset
        lines[row] = f"{lines[row][:start]}Parts{lines[row][end:]}"
    text = "\n".join([*lines[:first], new, *lines[last:]]) + "\n"
    return _replace_init(text, call)


def _replace_init(text: str, call: TaskCall) -> str:
    """Return the source with the weights alone of each `surestep.InitWeights(weights, ...)`."""
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and call.source.resolve(node.func) in _INIT and node.args
    ]
    for node in found:
        old, new = (ast.get_source_segment(text, one) for one in (node, node.args[0]))
        assert old is not None
        assert new is not None
        text = text.replace(old, new)
    return text


def inline_recipes(source: Source) -> Source:
    """Return the source with what it imports from built-in recipes, which is copied too."""
    statements: list[Statement] = []
    imports = dict(source.imports)
    for module in dict.fromkeys(found.module for found in source.imports.values()):
        if not module.startswith(_INLINED):
            continue
        bound = {name: one.name for name, one in source.imports.items() if one.module == module}
        needed = inline_recipes(_read_module(module)).reach([*bound.values()])
        _check_copied(needed, source, module)
        statements += needed.statements
        statements += [
            Statement((new,), f"{new} = {name}", ast.parse(f"{new} = {name}").body[0])
            for new, name in bound.items()
            if new != name
        ]
        imports = {name: found for name, found in imports.items() if found.module != module} | dict(
            needed.imports
        )
    return Source((*statements, *source.statements), imports, source.others, source.doc)


def _check_copied(copied: Source, source: Source, module: str) -> None:
    """Check that what is copied from a built-in recipe has no name of the recipe itself.

    Raises:
        RecipeError: it has one.
    """
    own = {name for one in source.statements for name in one.names} - {"task", *_CONFIGURES}
    for one in copied.statements:
        for name in own.intersection(one.names):
            raise RecipeError(
                f"The recipe binds {name!r} at its top, and so does {module}, of which a script "
                "has a copy. Give it a different name in the recipe."
            )


def _read_module(name: str) -> Source:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return read_source(Path(spec.origin).read_text(encoding="utf-8"))


def check_source(source: Source, reached: Source, path: Path) -> None:
    """Check that the statements that a script needs use nothing of surestep, and all are there.

    Raises:
        RecipeError: they do not.
    """
    for node in source.others:
        if not _is_main(node):
            raise RecipeError(
                f"{path}, line {node.lineno}: `{ast.unparse(node).splitlines()[0]}` runs when the "
                "recipe is imported, and a script would not have it. Move it into task()."
            )
    for statement in reached.statements:
        for used in _uses_of_surestep(reached, statement):
            raise RecipeError(
                f"{path}: {statement.names[0]} uses {used}, which a script without surestep does "
                "not have. Write it in plain PyTorch."
            )
        if any(reached.resolve(node).endswith(_WORKER) for node in _names_in(statement)):
            raise RecipeError(
                f"{path}: {statement.names[0]} uses torch.utils.data.get_worker_info, which is "
                "different in a script. Draw from torch, numpy.random or random."
            )
    for found in reached.imports.values():
        if found.module.startswith("."):
            raise RecipeError(
                f"{path} imports from {found.module!r}, a module of its package, which a script "
                "alone does not have. Copy what it needs into the recipe."
            )


def _names_in(statement: Statement) -> list[ast.expr]:
    kinds = (ast.Attribute, ast.Name)
    return [node for node in ast.walk(statement.node) if isinstance(node, kinds)]


def _uses_of_surestep(source: Source, statement: Statement) -> Iterator[str]:
    """Yield what a statement uses of surestep, in full."""
    for node in ast.walk(statement.node):
        if isinstance(node, (ast.Attribute, ast.Name)):
            full = source.resolve(node)
            if full.partition(".")[0] == "surestep" and full != "surestep":
                yield full
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                modules = [f"{node.module}.{name}" for name in modules]
            yield from (name for name in modules if name.partition(".")[0] == "surestep")


def _is_main(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__"` or one of type checkers."""
    if not isinstance(node, ast.If):
        return False
    return {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)} <= {
        "__name__",
        "TYPE_CHECKING",
    }
