"""Whether a source file is the user's, of surestep, or of Python and installed packages."""

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

_SURESTEP = f"{Path(__file__).parents[1]}{os.sep}"
_RECIPES = f"{_SURESTEP}recipes{os.sep}"
_PYTHON = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
# pip installs into folders of these names, in any environment; the second is Debian's.
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def is_user_file(file: str) -> bool:
    """Return whether a file is neither installed nor of surestep; a cell of a notebook is."""
    return not (is_surestep_file(file) or is_installed_file(file))


def is_surestep_file(file: str) -> bool:
    """Return whether a file is of this package; a folder of the user may have a similar name."""
    return file.startswith(_SURESTEP)


def is_recipe_file(file: str) -> bool:
    """Return whether a file is of a built-in recipe, which is written as a user would."""
    return file.startswith(_RECIPES)


def is_installed_file(file: str) -> bool:
    """Return whether a file is of Python or of an installed package, or a string that was run."""
    return is_torch_file(file) or _find_installed(file) is not None


def is_torch_file(file: str) -> bool:
    """Return whether a file is of the torch that is imported, which may be a source checkout."""
    torch: str | None = getattr(sys.modules.get("torch"), "__file__", None)
    return torch is not None and file.startswith(torch.removesuffix("__init__.py"))


def shorten_path(file: str) -> str:
    """Return the shortest path by which the user finds a file: "torch/nn/functional.py"."""
    if is_surestep_file(file):
        return os.path.relpath(file, Path(_SURESTEP).parent)
    if is_torch_file(file):
        return os.path.relpath(file, Path(sys.modules["torch"].__file__ or "").parents[1])
    if folder := _find_installed(file):
        return file.removeprefix(folder)
    relative = os.path.relpath(file)
    return file if relative.startswith("..") or file.startswith("<") else relative


@cache
def _find_installed(file: str) -> str | None:
    """Return the folder of packages that an installed file is in, or None for another file.

    It is "" for a file of Python, and for a string that was run.
    """
    if file.startswith("<"):
        return None if file.startswith("<ipython") else ""
    for name in _INSTALLED:
        folder, found, _ = file.rpartition(name)
        if found:
            return folder + found
    if file.startswith(_PYTHON):
        return ""
    # PYTHONPATH or a `.pth` file may name a folder of `pip install --target`.
    for folder in (os.path.join(path, "") for path in sys.path if path):
        if file.startswith(folder):
            top, _, _ = file.removeprefix(folder).partition(os.sep)
            if top.removesuffix(".py") in _list_installed(folder):
                return folder
    return None


@cache
def _list_installed(folder: str) -> frozenset[str]:
    """Return the names of the packages and modules that pip installed into a folder."""
    names = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        paths = record.read_text(encoding="utf-8", errors="replace").splitlines()
        names |= {path.partition(",")[0].partition("/")[0].removesuffix(".py") for path in paths}
    return frozenset(names)
