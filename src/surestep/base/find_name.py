"""Find an object that only some releases of a library have."""

from pkgutil import resolve_name
from typing import Any


def find_name(*names: str, instead: Any) -> Any:
    """Return the first of some objects that exists, by names such as "torch.fx:Proxy"."""
    for name in names:
        try:
            return resolve_name(name)
        except (ImportError, AttributeError):
            continue
    return instead
