"""Messages between a worker and the processes of its trial: lines of JSON over a Unix socket."""

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

SOCKET = "SURESTEP_TRIAL_SOCKET"  # in the environment of a trial: the path of the worker's socket
_CHUNK = 2**16


class Channel:
    """One end of a connection; each message is a line of JSON.

    Args:
        connection: an open stream socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()

    @classmethod
    def connect(cls, path: str) -> "Channel":
        """Connect to the socket of a worker.

        Raises:
            OSError: no process listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return cls(connection)

    def fileno(self) -> int:
        """Return the file descriptor, for `select`."""
        return self._socket.fileno()

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; return False if the other end is gone."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the other end is gone; wait for each."""
        while (found := self.read()) is not None:
            yield from found

    def read(self) -> list[dict[str, Any]] | None:
        """Wait for bytes; return the messages that are complete, or None at the end."""
        try:
            data = self._socket.recv(_CHUNK)
        except OSError:
            return None
        if not data:
            return None
        *lines, rest = (bytes(self._buffer) + data).split(b"\n")
        self._buffer = bytearray(rest)
        return [json.loads(line) for line in lines]

    def limit_wait(self, seconds: float) -> None:
        """Take a longer wait for a message for the end of the connection."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        """Close the connection; a thread that reads from it sees its end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
