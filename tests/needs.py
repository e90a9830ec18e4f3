"""Parts that only slow tests need: a test without its part is skipped, but fails if CI=true."""

import importlib
import os
import shutil
from types import ModuleType

import pytest

INSTALL = "install it with `sh install.sh .venv dev-all python3 torch`"


def needs(name: str) -> ModuleType:
    """Import a library of the extra dev-all, or skip the module or test that calls this."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"needs {name}: {INSTALL}")


def needs_compiler(command: str) -> None:
    """Skip the test that calls this if a compiler is missing."""
    if shutil.which(command) is None:
        report = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        report(f"needs {command}: install it with `apt-get install g++ python3-dev`")
