"""What training needs of the system: importing this raises ConfigError on Windows."""

from importlib import import_module
from typing import Any

from surestep.base.errors import ConfigError


def _import_fcntl() -> Any:
    try:
        return import_module("fcntl")
    except ImportError:
        raise ConfigError(
            "Training and run folders need Linux or macOS; under Windows, use WSL. The commands "
            "check, explain and watch run here."
        ) from None


fcntl = _import_fcntl()
