"""Packages that only some tests need: skipped where they are missing, but never in CI."""

import importlib
import os
from types import ModuleType

import pytest


def needs(name: str) -> ModuleType:
    """Import a package, or skip the module that asks for it; under CI=true it must be there."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(name)
    return pytest.importorskip(name)
