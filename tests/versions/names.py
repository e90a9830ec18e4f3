"""Which names of torch the package reads, and which of them a release of torch lacks.

`python -m tests.versions` writes both to names.json. `test_names.py` compares them with the source,
so that a name that an older or newer torch lacks is found without that torch.
"""

import ast
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "surestep"
FILE = Path(__file__).parent / "names.json"
OTHER = "torch.utils.tensorboard"  # whose names need the package tensorboard
EXAMPLE = re.compile(r"(bad|good)_")  # functions of rules: scripts of others
# A path of find_name(), of a registry, or of a class whose methods are read.
PATH = re.compile(r"torch(\.\w+)*[:.]\w+(\.\w+)*")
# Methods that the package calls or overrides, which the source does not show with their class.
METHODS = {
    "torch.nn.Module._call_impl",
    "torch.utils.data.DataLoader._get_iterator",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._shutdown_workers",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data",
    "torch.utils._python_dispatch.TorchDispatchMode._should_skip_dynamo",
    "torch.distributed.Store.clone",
    "torch.distributed.Store.compare_set",
    "torch.distributed.Store.multi_get",
}
RESOLVE = """
import importlib, json, sys
def find(path):
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        try:
            for part in parts[end:]:
                found = getattr(found, part)
        except AttributeError:
            continue
        return True
    return False
names = json.load(sys.stdin)
print(json.dumps([name for name in names if not find(name)]))
"""


class _Reader(ast.NodeVisitor):
    """Collects the names of torch in a module, under the names by which it imports them."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._aliases: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not EXAMPLE.match(node.name):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == "torch":
                self.found.add(alias.name)
                self._aliases[alias.asname or "torch"] = alias.name if alias.asname else "torch"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").partition(".")[0] == "torch":
            for alias in node.names:
                self.found.add(f"{node.module}.{alias.name}")
                self._aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Attribute(self, node: ast.Attribute) -> None:
        parts, inner = [node.attr], node.value
        while isinstance(inner, ast.Attribute):
            parts, inner = [inner.attr, *parts], inner.value
        if isinstance(inner, ast.Name) and inner.id in self._aliases:
            self.found.add(".".join([self._aliases[inner.id], *parts]))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and PATH.fullmatch(node.value):
            self.found.add(node.value.replace(":", "."))


def collect_names() -> list[str]:
    """Return the names of torch that the package reads, without examples and annotations' text."""
    names = set(METHODS)
    for path in SOURCE.rglob("*.py"):
        names |= read_names(path.read_text(encoding="utf-8"))
    return sorted(name for name in names if not name.startswith(OTHER))


def read_names(source: str) -> set[str]:
    """Return the names of torch that a source reads, each with the name of its module."""
    reader = _Reader()
    reader.visit(ast.parse(source))
    return reader.found


def list_missing(python: Path, names: list[str]) -> list[str]:
    """Return the names that the torch of a Python lacks."""
    done = subprocess.run(
        [python, "-W", "ignore", "-c", RESOLVE],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        check=True,
    )
    missing: list[str] = json.loads(done.stdout)
    return missing


def load() -> dict[str, list[str]]:
    """Return the recorded names, each with the releases of torch that lack it."""
    recorded: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))["lacking"]
    return recorded


def list_releases() -> list[str]:
    """Return the releases of torch that the names were compared with."""
    releases: list[str] = json.loads(FILE.read_text(encoding="utf-8"))["releases"]
    return releases


def record(found: dict[str, list[str]]) -> None:
    """Write which names some releases lack, and keep what is recorded of the other releases.

    Args:
        found: by release, the names that it lacks.
    """
    names = collect_names()
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    lacking: dict[str, list[str]] = known.get("lacking", {})
    table = {
        name: sorted(
            {release for release in lacking.get(name, ()) if release not in found}
            | {release for release, missing in found.items() if name in missing},
            key=_as_numbers,
        )
        for name in names
    }
    releases = sorted({*known.get("releases", ()), *found}, key=_as_numbers)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(table[name])}" for name in names)
    text = f'{{\n "releases": {json.dumps(releases)},\n "lacking": {{\n{lines}\n }}\n}}\n'
    FILE.write_text(text, encoding="utf-8")


def _as_numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]
