"""The correct scripts, as syntax trees in which each name of torch is its full path."""

from __future__ import annotations

import ast
import importlib.util
import pickle
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "bases"
NEEDS = {
    "accelerate_loop": "accelerate",
    "lightning_module": "lightning",
    "tabular": "sklearn",
}


@dataclass
class Script:
    """A training script of one file or several.

    Attributes:
        name: of the base.
        main: the file that is run.
        trees: of each file, by its name.
    """

    name: str
    main: str
    trees: dict[str, ast.Module]

    def copy(self) -> Script:
        # Four times as fast as `copy.deepcopy`.
        return Script(self.name, self.main, pickle.loads(pickle.dumps(self.trees)))

    def write(self) -> dict[str, str]:
        """Return the source of each file."""
        return {
            name: f"{ast.unparse(ast.fix_missing_locations(tree))}\n"
            for name, tree in self.trees.items()
        }

    @property
    def can_run(self) -> bool:
        """Whether the library that it needs is installed."""
        needed = NEEDS.get(self.name)
        return needed is None or importlib.util.find_spec(needed) is not None


def list_bases() -> list[str]:
    return sorted(
        path.stem
        for path in FOLDER.iterdir()
        if path.suffix == ".py" or (path / "train.py").is_file()
    )


def read_base(name: str) -> dict[str, str]:
    """Return the source of each file of a base, as it was written."""
    path = FOLDER / f"{name}.py"
    if path.is_file():
        return {"train.py": path.read_text(encoding="utf-8")}
    return {p.name: p.read_text(encoding="utf-8") for p in sorted((FOLDER / name).glob("*.py"))}


@cache
def load_base(name: str) -> Script:
    """Return a base with full paths; copy it before a change."""
    return Script(name, "train.py", {n: spell_out(s) for n, s in read_base(name).items()})


@cache
def write_base(name: str) -> dict[str, str]:
    """Return the source of each file of a base with full paths."""
    return load_base(name).copy().write()


def spell_out(source: str) -> ast.Module:
    """Return a tree that imports only `torch` of torch: `nn.Linear` is `torch.nn.Linear`."""
    tree = ast.parse(source)
    paths: dict[str, str] = {}
    body: list[ast.stmt] = []
    for node in tree.body:
        match node:
            case ast.Import(names=[ast.alias(name=name, asname=asname)]) if is_torch(name):
                paths[asname or "torch"] = name if asname else "torch"
            case ast.ImportFrom(module=str(module), names=names, level=0) if is_torch(module):
                paths.update({a.asname or a.name: f"{module}.{a.name}" for a in names})
            case _:
                body.append(node)
    start = 1 if ast.get_docstring(tree) is not None else 0
    start += any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in body)
    if paths:
        body.insert(start, ast.parse("import torch").body[0])
    tree.body = body
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in paths:
            become(node, ast.parse(paths[node.id], mode="eval").body)
    return tree


def is_torch(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def become(node: ast.AST, other: ast.AST) -> None:
    """Turn a node of a tree into another one."""
    node.__class__ = other.__class__
    node.__dict__ = dict(other.__dict__)
