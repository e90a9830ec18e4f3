"""Where the user's cache is."""

import os
from pathlib import Path


def find_cache_folder(name: str) -> Path:
    """Return the folder of one cache: in $SURESTEP_CACHE_DIR, or in the cache folder of the user.

    Args:
        name: of the cache.
    """
    if chosen := os.environ.get("SURESTEP_CACHE_DIR"):
        return Path(chosen) / name
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "surestep" / name
