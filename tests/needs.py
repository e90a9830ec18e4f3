"""Parts that only slow tests need: a test without its part is skipped, but fails if CI=true."""

import importlib.util
import os
import shutil
from types import ModuleType
from typing import NoReturn

import pytest

INSTALL = "install it with `sh install.sh .venv dev-all python3 torch`"


def needs(name: str) -> ModuleType:
    """Import a library of the extra dev-all, or skip the module or test that calls this."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"needs {name}: {INSTALL}")


def require(name: str) -> None:
    """Skip the test that calls this if a library of dev-all is missing, without importing it."""
    if importlib.util.find_spec(name) is None:
        report_missing(f"needs {name}: {INSTALL}")


def needs_compiler(command: str) -> None:
    """Skip the test that calls this if a compiler is missing."""
    needs_program(command, "install it with `apt-get install g++ python3-dev`")


def needs_program(command: str, how: str) -> str:
    """Return the path of a program, or skip the test that calls this."""
    found = shutil.which(command)
    if found is None:
        report_missing(f"needs {command}: {how}")
    return str(found)


def report_missing(text: str) -> NoReturn:
    """Skip the test that calls this, or fail it if CI=true."""
    if os.environ.get("CI") == "true":
        pytest.fail(text)
    pytest.skip(text)
