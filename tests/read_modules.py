"""Forget the modules that a test has read: others would find their files gone."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def forget_modules(folder: Path) -> Iterator[None]:
    """Forget what is imported from a folder meanwhile, and put the search path back."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
