"""Where the trials of a study are stored: a journal in its folder, or a database."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from surestep.base.errors import ConfigError, RunError
from surestep.base.secrets import first_line
from surestep.base.text import format_count, print_escaped
from surestep.base.warn import warn
from surestep.record.events import copy_aside
from surestep.record.io import os_error_hint
from surestep.tuning.lock import FileLock

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from sqlalchemy import URL

    from surestep.tuning.settings import StudySettings

P = ParamSpec("P")
S = TypeVar("S", bound="_Stored")
T = TypeVar("T")
JOURNAL = "study.log"
_SQLITE_TIMEOUT_S = 120  # how long a transaction waits for those of other workers
_WAITS_S = (1, 2, 4, 8)  # before a request to a database is repeated
_SILENT_S = 2  # a wait that is longer is the third or fourth of a request, and is reported
_ATTEMPTS = 5  # to create the tables, while other processes create them too
_EXAMPLES = "sqlite:///study.db or postgresql://user:password@host/database"
_DRIVERS = {  # module: its package
    "psycopg": "'psycopg[binary]'",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
}


def require_optuna() -> ModuleType:
    """Import Optuna, and let it report only errors.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        raise ConfigError(
            f"A search needs Optuna, which cannot be imported ({error}). Install it: pip install "
            "optuna"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it prints each trial to stderr
    return optuna


def without_password(url: str | None) -> str | None:
    """Return the URL of a database as it may be recorded: without a password, with a full path.

    Raises:
        ConfigError: it is not the URL of a database that several processes can use.
    """
    if url is None:
        return None
    parsed = _parse_url(url)
    query = {key: value for key, value in parsed.query.items() if "pass" not in key.lower()}
    clean = parsed.set(query=query)._replace(password=None)
    return str(clean.render_as_string(hide_password=False))


def _parse_url(url: str) -> URL:
    """Parse a URL.

    Raises:
        ConfigError: it is not the URL of a database that several processes can use.
    """
    require_optuna()
    from sqlalchemy import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (SQLAlchemyError, ValueError) as error:
        raise ConfigError(
            f"--storage {url.partition(':')[0]}... is not the URL of a database. Pass one such as "
            f"{_EXAMPLES}, or leave --storage out."
        ) from error
    if backend not in ("sqlite", "postgresql", "mysql", "mariadb"):
        raise ConfigError(
            f"--storage {backend}... is not a database that a study can use. Pass a URL such as "
            f"{_EXAMPLES}, or leave --storage out."
        )
    if backend == "sqlite" and parsed.host:
        raise ConfigError(
            f"--storage sqlite://{parsed.host} has no file. Write sqlite:///{parsed.host}, with "
            "three slashes."
        )
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            "--storage is an SQLite database in memory, which is lost with its process. Pass a "
            "file, such as sqlite:///study.db, or leave --storage out."
        )
    if backend == "sqlite":  # the next worker may start in another folder
        parsed = parsed.set(database=str(Path(str(parsed.database)).resolve()))
    return parsed


def open_storage(folder: Path, url: str | None, *, create: bool = True) -> BaseStorage:
    """Open the storage of a study.

    Args:
        folder: of the study.
        url: of a database, with the password if it needs one; None is the journal.
        create: create its files or tables if they are missing.

    Raises:
        ConfigError: the URL is invalid, or a package is missing.
        RunError: the file or the database cannot be opened, or is missing.
    """
    storages = require_optuna().storages
    if url is None and not (folder / JOURNAL).exists() and any((folder / "trials").glob("*/")):
        raise RunError(
            f"{folder / JOURNAL} is missing, and {folder / 'trials'} has runs. Put a copy of it "
            "back, or start a new study: surestep search RECIPE --study FOLDER"
        )
    place = folder / JOURNAL if url is None else _parse_url(url)
    if not create and (path := _path_of(place)) is not None and not path.exists():
        raise RunError(f"{path} is missing, so {folder} has no trials yet.")
    opened = (
        _open_journal(place, create) if isinstance(place, Path) else _open_database(place, create)
    )
    cached: BaseStorage = storages.get_storage(opened)  # adds a cache to a database
    return cached


def _path_of(place: Path | URL) -> Path | None:
    """Return the file of a journal or of an SQLite database."""
    if isinstance(place, Path):
        return place
    is_sqlite = place.get_backend_name() == "sqlite"
    return Path(str(place.database)) if is_sqlite else None


class _JournalLock(FileLock):
    """The lock of a journal; it removes what a process that was killed wrote of a last line."""

    def __init__(self, journal: Path) -> None:
        from optuna.storages.journal import JournalFileSymlinkLock

        super().__init__(journal.with_name(f"{journal.name}.lock"))
        self._journal = journal
        self._other = JournalFileSymlinkLock(f"{journal}.link")  # if there are no locks

    def acquire(self) -> bool:
        """Wait for the lock."""
        super().acquire()
        try:
            if not self.is_supported:
                self._other.acquire()
        except BaseException:
            super().release()
            raise
        try:
            _remove_torn_line(self._journal)
        except BaseException:
            self.release()
            raise
        return True

    def release(self) -> None:
        """Release the lock."""
        try:
            if not self.is_supported:
                self._other.release()
        finally:
            super().release()


def _remove_torn_line(journal: Path) -> None:
    """Truncate a journal after its last full line; no process has read what is after it."""
    with journal.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        if not end:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def _set_damage_aside(journal: Path) -> None:
    """Set aside what follows the last record of a journal, with a warning.

    Optuna ignores a damaged last line, and cannot read the journal once a record follows it.
    """
    data = journal.read_bytes()
    end = len(data)
    while end and not _is_record(data[(start := data.rfind(b"\n", 0, end - 1) + 1) : end]):
        end = start
    if end == len(data):
        return
    aside = copy_aside(journal, [(end, len(data))])
    os.truncate(journal, end)
    size = format_count(len(data) - end, "byte")
    warn(
        f"{journal} was damaged: its last {size} were not records. They are in {aside.name} now; "
        "the records before them are kept."
    )


def _is_record(line: bytes) -> bool:
    try:
        return "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


def _open_journal(path: Path, create: bool) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with _explain_errors(str(path), "Put a copy of it back"):
        if path.is_symlink():
            raise OSError(f"it is a link to {os.readlink(path)}")
        lock = _JournalLock(path)
        if create:
            path.touch()
            with lock:
                _set_damage_aside(path)
        return JournalStorage(JournalFileBackend(str(path), cast("Any", lock)))


def _open_database(url: URL, create: bool) -> BaseStorage:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    is_sqlite = url.get_backend_name() == "sqlite"
    # Without a pool no connection is kept that a server closes, or that a fork shares.
    options: dict[str, Any] = {"poolclass": NullPool}
    if is_sqlite:
        options["connect_args"] = {"timeout": _SQLITE_TIMEOUT_S}
    with _explain_errors(url.render_as_string(hide_password=True), "Check --storage"):
        for attempt in range(_ATTEMPTS):
            try:
                storage = RDBStorage(
                    url.render_as_string(hide_password=False),
                    options,
                    skip_table_creation=not create,
                )
                break
            except SQLAlchemyError:  # another process may have created a table at the same time
                if attempt == _ATTEMPTS - 1:
                    raise
    if is_sqlite:
        _lock_whole_transactions(storage.engine)
    return storage


def _lock_whole_transactions(engine: Any) -> None:
    """Make SQLite lock the database at the start of a transaction, and not at its first write.

    Otherwise two workers can both read that a trial waits, and both take it: SQLite ignores the row
    locks that Optuna asks for.

    Source: https://docs.sqlalchemy.org/en/20/dialects/sqlite.html#enabling-non-legacy-sqlite-transactional-modes-with-the-sqlite3-or-aiosqlite-driver
    """
    from sqlalchemy import event

    def leave_transactions_to_sqlalchemy(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", leave_transactions_to_sqlalchemy)
    event.listen(engine, "begin", begin)


@contextmanager
def _explain_errors(place: str, advice: str) -> Iterator[None]:
    """Raise errors of the storage as those that name it, with an advice for damaged content.

    Raises:
        ConfigError: the package of a database is missing.
        RunError: it cannot be opened.
    """
    try:
        yield
    except ImportError as error:
        name = getattr(error.__cause__ or error, "name", None) or "its driver"
        package = _DRIVERS.get(name, name)
        raise ConfigError(f"{place} needs {name}. Install it: pip install {package}") from error
    except OSError as error:
        raise RunError(
            f"{place} cannot be opened: {error.strerror or error}. Change its permissions, "
            "or start a new study: surestep search RECIPE --study FOLDER"
        ) from error
    except Exception as error:  # of SQLAlchemy, of its driver, of Optuna or of a damaged journal
        raise RunError(
            f"{place} cannot be opened: {_first_line(error)}. {advice}, or start a new study: "
            "surestep search RECIPE --study FOLDER"
        ) from error


class Outage:
    """Whether the database of a study answers, for all threads of a process.

    Attributes:
        is_long: it did not answer to the last requests that were repeated to their end.
    """

    def __init__(self) -> None:
        self.is_long = False
        self._is_reported = False

    def report(self, error: Exception) -> None:
        """Print once that the database does not answer."""
        if not self._is_reported:
            self._is_reported = True
            print_escaped(
                f"The database of the study does not answer: {_first_line(error)}. Each request is "
                f"repeated for {sum(_WAITS_S)} s.",
                sys.stderr,
            )

    def end(self) -> None:
        """Note an answer, and print it if an outage was printed."""
        self.is_long = False
        if self._is_reported:
            self._is_reported = False
            print_escaped("The database of the study answers again.", sys.stderr)


class _Stored(Protocol):
    """What has methods that use the storage."""

    folder: Path
    settings: StudySettings
    outage: Outage


def persist(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Repeat a method of a study if its database does not answer.

    Raises:
        RunError: it did not answer for 15 seconds, or a file of the study cannot be written.
    """
    return _repeat(method, lambda _: _WAITS_S)


def persist_while_up(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Repeat a method of a study as `persist` does, but only in the first 15 s of an outage.

    For what a search can do without: it must neither delay a trial again and again, nor the end.
    """
    return _repeat(method, lambda outage: () if outage.is_long else _WAITS_S)


def _repeat(
    method: Callable[Concatenate[S, P], T], waits: Callable[[Outage], Sequence[int]]
) -> Callable[Concatenate[S, P], T]:
    """Repeat a method of a study after each of these waits, in seconds."""

    @wraps(method)
    def call(study: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        from sqlalchemy.exc import SQLAlchemyError

        internal, outage = require_optuna().exceptions.StorageInternalError, study.outage
        for wait_s in (*waits(outage), None):
            try:
                result = method(study, *args, **kwargs)
            except (internal, SQLAlchemyError) as error:
                if wait_s is None:
                    outage.is_long = True
                    raise _away_error(study, error) from error
                if wait_s > _SILENT_S:
                    outage.report(error)
                time.sleep(wait_s)
            except OSError as error:
                hint = os_error_hint(error, how=" with --study")
                raise RunError(
                    f"The study could not be written: {error.strerror or error}. {hint}"
                ) from error
            else:
                outage.end()
                return result
        raise AssertionError

    return call


def _away_error(study: _Stored, error: Exception) -> RunError:
    """Return an error with the command that continues a study, for when its database answers."""
    words = ["surestep", "search", "--resume", str(study.folder)]
    if "@" in (study.settings.storage or ""):  # there may be a password, which is not recorded
        words += ["--storage", "URL"]
    return RunError(
        f"The database of the study does not answer: {_first_line(error)}. To continue once it "
        f"does: {shlex.join(words)}"
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of the message of a driver; Optuna and SQLAlchemy add to it."""
    if isinstance(error, require_optuna().exceptions.StorageInternalError):
        error = error.__cause__ or error
    return first_line(getattr(error, "orig", None) or error) or type(error).__name__
