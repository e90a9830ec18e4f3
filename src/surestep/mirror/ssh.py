"""Files on a machine behind SSH, with the methods of an fsspec file system that a store calls.

fsspec's own driver has one connection, which two threads must not use at the same time and which is
not opened again after it broke. It also accepts any host key.
"""

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from stat import S_ISDIR, S_ISREG
from typing import Any
from urllib.parse import urlsplit

from surestep.base.errors import ConfigError

# A server that does not answer is noticed within a minute.
_CONNECT_S = 10.0
_ANSWER_S = 30.0
_KEEPALIVE_S = 30  # routers forget connections that are silent for minutes


class _Connection:
    """A connection, which is closed when the last reference to it is gone.

    A thread's own values are gone when it ends. paramiko's thread keeps its client open longer.

    Args:
        client: paramiko's.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self.sftp = client.open_sftp()
        self.sftp.get_channel().settimeout(_ANSWER_S)
        self.close = weakref.finalize(self, client.close)
        self.close.atexit = False  # the process is about to close it


class SSHFileSystem:
    """Files on a machine behind SSH. Each thread has a connection, opened when it needs one.

    Options of paramiko's `SSHClient.connect`, such as `key_filename`, are read from fsspec's
    configuration file.

    Args:
        address: such as "sftp://me@host:22/backup/run"; the path is absolute.

    Attributes:
        root: the path in the address.

    Raises:
        ImportError: paramiko is not installed.
        ConfigError: the address has no host, or no port after the colon.
    """

    def __init__(self, address: str) -> None:
        import paramiko
        from fsspec.config import conf

        self._paramiko: Any = paramiko
        # Without a handler, Python prints the traceback of each outage.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        server, _, path = address.partition("://")[2].partition("/")
        self.root = f"/{path}"
        try:
            parts = urlsplit(f"ssh://{server}")
            found = {"hostname": parts.hostname, "username": parts.username, "port": parts.port}
        except ValueError as error:
            raise ConfigError(f"{address} is not an address: {error}.") from None
        if not parts.hostname:
            raise ConfigError(f"{address} has no host. Use sftp://user@host/backup/run.")
        limits = {"timeout": _CONNECT_S, "banner_timeout": _ANSWER_S, "auth_timeout": _ANSWER_S}
        given = {name: value for name, value in found.items() if value is not None}
        self._options = {**limits, **conf.get("ssh", {}), **conf.get("sftp", {}), **given}
        self._of_thread = threading.local()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Yield the connection of this thread; after an error, the next call opens another."""
        try:
            yield self._connect()
        except (FileNotFoundError, PermissionError):  # answers
            raise
        except Exception:
            if (connection := self._of_thread.__dict__.pop("connection", None)) is not None:
                connection.close()
            raise

    def _connect(self) -> Any:
        known: _Connection | None = getattr(self._of_thread, "connection", None)
        if known is not None and known.client.get_transport().is_active():
            return known.sftp
        client = self._paramiko.SSHClient()
        client.load_system_host_keys()  # a host with another key, or an unknown one, is rejected
        with self._explain_rejection():
            client.connect(**self._options)
        client.get_transport().set_keepalive(_KEEPALIVE_S)
        self._of_thread.connection = _Connection(client)
        return self._of_thread.connection.sftp

    @contextmanager
    def _explain_rejection(self) -> Iterator[None]:
        """Raise a PermissionError if no later attempt to connect can succeed."""
        try:
            yield
        except (FileNotFoundError, PermissionError) as error:  # of a key, not of the mirror
            raise ConnectionError(str(error)) from error
        except self._paramiko.SSHException as error:
            text = str(error).rstrip(".")
            if "known_hosts" in text:
                text = f"{text}. Connect to it once with ssh, which asks for and adds its key"
            elif isinstance(error, self._paramiko.AuthenticationException) or "No auth" in text:
                text = f"{text}. Add a key to the SSH agent or to ~/.ssh"
            elif not isinstance(error, self._paramiko.BadHostKeyException):
                raise
            raise PermissionError(text) from error

    def info(self, path: str) -> dict[str, Any]:
        """Return the name, size and type of a file or folder."""
        with self._connected() as sftp:
            return _describe(path, sftp.stat(path))

    def ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        """Return the entries of a folder, as `info` does."""
        assert detail
        with self._connected() as sftp:
            return [
                _describe(f"{path}/{entry.filename}", entry) for entry in sftp.listdir_iter(path)
            ]

    def cat_file(self, path: str, *, start: int, end: int) -> bytes:
        """Return some bytes of a file."""
        with self._connected() as sftp, sftp.open(path, "rb") as file:
            # Requests all of it at once: one request of 32 KiB after another is slow.
            return bytes(b"".join(file.readv([(start, end - start)])))

    def pipe_file(self, path: str, data: bytes) -> None:
        """Write a file."""
        with self._connected() as sftp, sftp.open(path, "wb") as file:
            file.set_pipelined(True)
            file.write(data)

    def put_file(self, source: Iterable[bytes], path: str) -> None:
        """Write the chunks of a file."""
        with self._connected() as sftp, sftp.open(path, "wb") as file:
            file.set_pipelined(True)
            for chunk in source:
                file.write(chunk)

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Create a folder and those above it, as far as they do not exist."""
        assert exist_ok
        with self._connected() as sftp:
            self._make(sftp, path)

    def _make(self, sftp: Any, path: str) -> None:
        try:
            sftp.stat(path)
        except FileNotFoundError:
            self._make(sftp, path.rpartition("/")[0] or "/")
            try:
                sftp.mkdir(path)
            except OSError:
                sftp.stat(path)  # another thread created it

    def mv(self, path: str, new: str) -> None:
        """Rename a file, and replace what has the new name."""
        with self._connected() as sftp:
            sftp.posix_rename(path, new)  # rename() fails if the new name exists

    def rm_file(self, path: str) -> None:
        """Delete a file."""
        with self._connected() as sftp:
            sftp.remove(path)

    def rmdir(self, path: str) -> None:
        """Delete an empty folder."""
        with self._connected() as sftp:
            sftp.rmdir(path)


def _describe(path: str, stat: Any) -> dict[str, Any]:
    kind = "directory" if S_ISDIR(stat.st_mode) else "file" if S_ISREG(stat.st_mode) else "other"
    return {"name": path, "size": stat.st_size, "type": kind}
