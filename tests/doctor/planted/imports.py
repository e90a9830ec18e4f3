"""Import torch in the usual ways."""

from __future__ import annotations

import ast
import random

from tests.doctor.planted.matching import build_statements
from tests.doctor.planted.parts import all_names, first_import
from tests.doctor.planted.scripts import Script, become

MODULES = (
    *("torch.nn.functional", "torch.nn.utils.rnn", "torch.nn.utils", "torch.nn.parallel"),
    *("torch.nn", "torch.optim.lr_scheduler", "torch.optim", "torch.utils.data.distributed"),
    *("torch.utils.data", "torch.amp", "torch.autograd", "torch.distributed"),
)
ALIASES = {
    "torch.nn.functional": ("F", "functional", "nnf"),
    "torch.nn": ("nn",),
    "torch.optim": ("optim", "O"),
    "torch.optim.lr_scheduler": ("lr_scheduler",),
    "torch.distributed": ("dist",),
}


def restyle_imports(script: Script, rng: random.Random) -> None:
    """Import torch in one of the usual ways, instead of by full paths."""
    style = rng.choice(["short", "short", "short", "mixed", "mixed", "names", "full"])
    for tree in script.trees.values():
        if style != "full":
            restyle_tree(tree, style, rng)


def restyle_tree(tree: ast.Module, style: str, rng: random.Random) -> None:
    taken = all_names(tree) | {
        a.asname or a.name
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
    }
    imports: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for node in chains(tree):
        path = ast.unparse(node)
        module = next((m for m in MODULES if path.startswith(f"{m}.")), None)
        if module is None:
            continue
        name = path.removeprefix(f"{module}.").partition(".")[0]
        whole = f"{module}.{name}"
        if path not in (whole,) and not path.startswith(f"{whole}."):
            continue
        by_name = (
            style == "names" or (style == "mixed" and rng.random() < 0.5) or module not in ALIASES
        )
        target = whole if by_name else module
        if target not in chosen:
            alias = name if by_name else rng.choice(ALIASES[module])
            if alias in taken or (by_name and module == "torch.distributed"):
                continue
            taken.add(alias)
            chosen[target] = alias
            imports[target] = spell_import(target, alias, rng)
        rest = path.removeprefix(target)
        become(node, ast.parse(f"{chosen[target]}{rest}", mode="eval").body)
    index = first_import(tree)
    tree.body[index:index] = build_statements("\n".join(sorted(imports.values())))


def spell_import(path: str, alias: str, rng: random.Random) -> str:
    parent, _, name = path.rpartition(".")
    is_module = path in MODULES
    if is_module and (alias != name or rng.random() < 0.5):
        short = f"from {parent} import {name}" + (f" as {alias}" if alias != name else "")
        return short if rng.random() < 0.4 else f"import {path} as {alias}"
    return f"from {parent} import {name}"


def chains(tree: ast.Module) -> list[ast.Attribute]:
    """Return the longest chains of attributes that start with `torch.`."""
    found: list[ast.Attribute] = []

    def search(node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            base: ast.AST = node
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id == "torch":
                found.append(node)
                return
        for child in ast.iter_child_nodes(node):
            search(child)

    search(tree)
    return found
