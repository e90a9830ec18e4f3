"""The top-level statements of a Python file, and which of them a name needs."""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class ImportedName(NamedTuple):
    """What a name is imported as: `from module import name`, or `import module` if `name` is ""."""

    module: str
    name: str = ""


@dataclass(frozen=True)
class Statement:
    """A statement at the top of a file, such as a function.

    Attributes:
        names: that it binds.
        text: its source, with the comments above it.
        node: its tree.
    """

    names: tuple[str, ...]
    text: str
    node: ast.stmt

    @property
    def uses(self) -> set[str]:
        """The names that it reads."""
        return {node.id for node in ast.walk(self.node) if isinstance(node, ast.Name)}

    @property
    def is_block(self) -> bool:
        """Whether it is a function or a class."""
        return isinstance(self.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))


@dataclass(frozen=True)
class Source:
    """A Python file.

    Attributes:
        statements: those that bind names, in order.
        imports: what each imported name is, wherever it is imported.
        others: top-level statements that bind no name: they run when the file is imported.
        doc: its docstring.
    """

    statements: tuple[Statement, ...]
    imports: Mapping[str, ImportedName] = field(default_factory=dict)
    others: tuple[ast.stmt, ...] = ()
    doc: str = ""

    def find(self, name: str) -> Statement | None:
        """Return the last statement that binds a name; None if there is none."""
        return next((one for one in reversed(self.statements) if name in one.names), None)

    def reach(self, names: Collection[str]) -> "Source":
        """Return what these names need: their statements, and all that those read."""
        needed: list[Statement] = []
        waiting, seen = list(names), set[str]()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            found = self.find(name)
            if found is not None and found not in needed:
                needed.append(found)
                waiting += found.uses
        kept = tuple(one for one in self.statements if one in needed)
        imports = {
            name: found
            for name, found in self.imports.items()
            if name in seen or found.module == "__future__"
        }
        return Source(kept, imports, doc=self.doc)

    def imported_modules(self) -> set[str]:
        """Return the modules that are imported, also within functions."""
        nodes = [node for one in self.statements for node in ast.walk(one.node)]
        inner = {
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        inner |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        return inner | {found.module for found in self.imports.values()}

    def resolve(self, node: ast.expr) -> str:
        """Return what an expression such as `ss.losses.huber` names, in full; "" if no import."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        found = self.imports[node.id]
        is_top = not found.name and found.module.partition(".")[0] == node.id  # import a.b
        names = [node.id] if is_top else [found.module, *filter(None, [found.name])]
        return ".".join([*names, *reversed(parts)])


def read_source(text: str) -> Source:
    """Read the statements of a file.

    Raises:
        SyntaxError: it is not Python.
    """
    tree, lines = ast.parse(text), text.splitlines()
    imports = dict(_imported(tree))
    statements, others = [], []
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_text(node):
            continue
        names = tuple(_bound_names(node))
        if names:
            statements.append(Statement(names, _text_of(node, lines), node))
        else:
            others.append(node)
    return Source(tuple(statements), imports, tuple(others), ast.get_docstring(tree) or "")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _imported(tree: ast.Module) -> Iterator[tuple[str, ImportedName]]:
    """Yield what the imports at the top of a file bind."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                yield bound, ImportedName(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, ImportedName(module, alias.name)


def _bound_names(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, if it does nothing else."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    for target in targets:
        members = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        yield from (member.id for member in members if isinstance(member, ast.Name))


def _text_of(node: ast.stmt, lines: list[str]) -> str:
    """Return the source of a statement, with its decorators and the comments above it."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)]) - 1
    while first and lines[first - 1].startswith("#"):
        first -= 1
    return "\n".join(lines[first : node.end_lineno])
