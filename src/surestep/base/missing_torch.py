"""What surestep says if torch is not installed: it is an extra, and only training needs it."""

from importlib.util import find_spec

INSTALL_TORCH = (
    "Install it: pip install 'surestep[torch]', or a build for your GPU from "
    "https://pytorch.org/get-started/locally/"
)


def is_missing_torch(error: BaseException) -> bool:
    """Return whether an error says that torch is not installed."""
    return isinstance(error, ModuleNotFoundError) and error.name == "torch"


def require_torch() -> None:
    """Raise the error of `import torch` if torch is not installed, without importing it."""
    if find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


def describe_missing_torch(what: str) -> str:
    """Return a line that says that something, such as a command, needs torch."""
    return f"{what} needs torch, which is not installed. {INSTALL_TORCH}"
