"""The local store of MLflow: a SQLite file, whose tables MLflow creates in many steps."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from surestep.base.errors import RunError

_HALF_CREATED = re.compile(r"OperationalError\) .*(already exists|duplicate column name)")


def create_store(uri: str) -> None:
    """Create the SQLite file of a store if it is missing, with all tables or not at all.

    If a process ends while MLflow creates the tables, no other can continue, and the thread of a
    tracker ends with its process. So they are created in a temporary folder beside the file.

    Args:
        uri: of the store; nothing happens if it is not a file of SQLite.
    """
    from mlflow import MlflowClient
    from sqlalchemy import make_url

    path = _sqlite_file(uri)
    if path is None or path.exists() or not path.parent.is_dir():
        return
    with TemporaryDirectory(
        prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True
    ) as folder:
        new = Path(folder) / path.name
        MlflowClient(str(make_url(uri).set(database=str(new)))).search_experiments(max_results=1)
        # Another process may have been first. Where links are missing, MLflow creates the file.
        with suppress(OSError):
            os.link(new, path)


@contextmanager
def explain_half_created(uri: str) -> Iterator[None]:
    """Explain the error of a store with only some of its tables.

    Args:
        uri: of the store.

    Raises:
        RunError: the store is a file of SQLite that a process left half created or half upgraded.
    """
    try:
        yield
    except Exception as error:
        path = _sqlite_file(uri)
        if path is None or not _HALF_CREATED.search(str(error)):
            raise
        raise RunError(
            f"{path} is incomplete: a process ended while MLflow created or upgraded its tables. "
            "Rename it, or delete it if it has no runs that you need"
        ) from error


def _sqlite_file(uri: str) -> Path | None:
    """Return the file of a store; None if it is a server, a folder or in memory."""
    if not uri.startswith("sqlite:"):
        return None
    from sqlalchemy import make_url

    database = make_url(uri).database
    if not database or database.startswith((":memory:", "file:")):
        return None
    return Path(database)
