"""A PostgreSQL server of its own for the tests, on loopback, in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.multi_rank.torchrun import free_port
from tests.needs import needs, report_missing

PASSWORD = "pass-word"
INSTALL = "install it with `apt-get install --no-install-recommends postgresql`"


def find_programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl`: Debian does not put it on the PATH."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, default=None)


def _version(folder: Path) -> float:
    return float(folder.parent.name)


class PostgreSQL:
    """A server with one user, who needs a password.

    Args:
        programs: the folder of PostgreSQL's programs.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="surestep-postgres-"))
        self._user = _ordinary_user()
        self.port = free_port()
        self._databases = 0

    def start(self) -> None:
        """Create the files of the server and start it; return when it answers."""
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            *("initdb", "--username=surestep", f"--pwfile={password}", "--auth=scram-sha-256"),
            *("--no-sync", "--no-instructions", "--encoding=UTF8", "--locale=C"),
            f"--pgdata={self._folder / 'data'}",
        )
        self.restart()

    def restart(self) -> None:
        """Start the server on its files; return when it answers."""
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        log = f"--log={self._folder / 'log'}"
        self._run("pg_ctl", "start", "--wait", log, f"--options={options}", self._data)

    def kill(self) -> None:
        """Stop the server at once, whoever is connected; its files stay."""
        self._run("pg_ctl", "stop", "--mode=immediate", self._data)

    def stop(self) -> None:
        """Stop the server, and delete its files."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._folder)

    def create_database(self) -> str:
        """Create an empty database and return its URL, with the password."""
        self._databases += 1
        name = f"study{self._databases}"
        self._run(
            *("createdb", "--host=127.0.0.1", f"--port={self.port}", "--username=surestep", name)
        )
        return f"postgresql+psycopg2://surestep:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    @property
    def _data(self) -> str:
        return f"--pgdata={self._folder / 'data'}"

    def _run(self, program: str, *words: str) -> None:
        # The output goes to a file: the server inherits it, so a pipe would never reach its end.
        with (self._folder / "output").open("w+") as output:
            done = subprocess.run(
                [self._programs / program, *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                user=self._user,
                cwd=self._folder,
                env={**os.environ, "PGPASSWORD": PASSWORD, "LC_ALL": "C"},
                timeout=120,
            )
            output.seek(0)
            assert done.returncode == 0, output.read()


def _ordinary_user() -> str | None:
    """Return a user to run the server as: it does not start as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


@pytest.fixture(scope="session")
def postgres():
    """Start a server for all tests of this process; skip the test if it is not installed."""
    needs("psycopg2")
    needs("sqlalchemy")
    programs = find_programs()
    if programs is None:
        report_missing(f"needs PostgreSQL: {INSTALL}")
    server = PostgreSQL(programs)
    try:
        server.start()
        yield server
    finally:
        server.stop()
