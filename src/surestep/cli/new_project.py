"""`surestep new project NAME --kind KIND`: a folder that trains, and tests itself, at once."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import tyro

from surestep.base.errors import ConfigError, suggest_names
from surestep.base.text import print_escaped
from surestep.cli.parse import parse

KINDS = ("classifier", "regressor", "language-model", "fine-tune")
# A name that pip, git and every file system take.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TEMPLATES = files("surestep.cli") / "project"
_FILES = {  # by path in the project, the template
    "recipe.py": "{kind}.py.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "tests/test_recipe.py": "test_recipe.py.txt",
    ".github/workflows/check.yml": "check.yml.txt",
}
_FILLED = ("pyproject.toml", "README.md")
_IGNORED = "runs/\n__pycache__/\n*.egg-info/\n"


@dataclass(frozen=True)
class Options:
    """Write a folder with a recipe, a test and a workflow. Without NAME or --kind, it asks.

    Attributes:
        name: The folder to write, which must not exist.
        kind: What is trained: classifier, regressor, language-model or fine-tune.
    """

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")] = None
    kind: Annotated[str | None, tyro.conf.arg(metavar="KIND")] = None


def run(words: list[str]) -> int:
    """Write the project, and print what to type next."""
    parsed = parse(Options, words, "surestep new project")
    name = parsed.name or _ask("Name of the project", "surestep new project NAME")
    kind = parsed.kind or _ask(f"Kind ({', '.join(KINDS)})", "--kind classifier")
    folder = Path(name)
    check_project(folder, kind)
    write_project(folder, kind)
    print_escaped(f"{folder} is written: a {kind}.")
    print_escaped(f"Next: cd {shlex.quote(name)} && surestep train recipe.py")
    return 0


def _ask(question: str, instead: str, read: Callable[[str], str] = input) -> str:
    """Return what is typed.

    Raises:
        ConfigError: no one is there to type, or nothing is typed.
    """
    answer = ""
    if sys.stdin.isatty():
        answer = read(f"{question}: ").strip()
    if not answer:
        raise ConfigError(f"{question} is not set. Type: {instead}.")
    return answer


def check_project(folder: Path, kind: str) -> None:
    """Check that a project can be written.

    Raises:
        ConfigError: the folder exists, or a name is not valid.
    """
    if kind not in KINDS:
        raise ConfigError(f"There is no kind {kind!r} of project. {suggest_names(kind, KINDS)}")
    if not _NAME.fullmatch(folder.name):
        raise ConfigError(
            f"{folder.name!r} is not a name of a project. Use letters, digits, - and _, such as "
            "my-project."
        )
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists already, and nothing is written into it. Pass another.")


def write_project(folder: Path, kind: str) -> Sequence[Path]:
    """Write the files of a project into a new folder; return their paths.

    Raises:
        ConfigError: the folder cannot be written.
    """
    texts = {".gitignore": _IGNORED}
    for path, template in _FILES.items():
        text = (_TEMPLATES / template.format(kind=kind)).read_text(encoding="utf-8")
        texts[path] = text.format(name=folder.name, kind=kind) if path in _FILLED else text
    try:
        folder.mkdir(parents=True)
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Pass another.") from error
    return [folder / path for path in texts]
