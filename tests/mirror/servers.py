"""An S3 server on loopback, and a proxy in front of it that can be cut and slowed."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

BUCKET = "bucket"


_SERVE = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs every request
server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server:
    """moto's S3 server in a process of its own, which is killed at the end of a `with` block.

    Attributes:
        port: on loopback; the server has the same one when it is started again.
    """

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def endpoint(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it without data."""
        words = [sys.executable, "-c", _SERVE, str(self.port)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """End it by SIGKILL; its data is lost."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> "S3Server":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def s3_environment(endpoint: str) -> dict[str, str]:
    """Return the environment variables for a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key-of-the-test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


class Proxy:
    """Forwards connections to a server; can be cut, slowed, and made to hold requests.

    Attributes:
        endpoint: the address of the proxy.
        sent: bytes that were forwarded to the server.
    """

    def __init__(self, endpoint: str) -> None:
        host, port = endpoint.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = 0
        self.rate: float | None = None  # bytes a second to the server
        self.cut_after: int | None = None  # cut when so many bytes were sent
        self.is_cut = False
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and each new one at once."""
        self.is_cut = True
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Accept connections, and forward nothing: the server seems to hang."""
        self.rate = 1e-9

    def restore(self) -> None:
        """Forward connections again, at full speed."""
        self.is_cut, self.cut_after, self.rate = False, None, None

    def wait_for(self, sent: int, timeout_s: float = 120.0) -> None:
        """Wait until so many bytes were forwarded."""
        end = time.monotonic() + timeout_s
        while self.sent < sent:
            assert time.monotonic() < end, f"{self.sent} bytes were sent"
            time.sleep(0.01)

    def close(self) -> None:
        """Stop."""
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_cut:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(self._target)
                except OSError:  # the server is dead for now
                    client.close()
                    continue
                self._open |= {client, server}
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(server, client, False), daemon=True)
        back.start()
        self._pump(client, server, True)
        back.join()
        self._open -= {client, server}
        client.close()
        server.close()

    def _delay(self, count: int) -> None:
        begin = time.monotonic()
        while self.rate is not None and time.monotonic() < begin + count / self.rate:
            time.sleep(min(0.05, count / self.rate))

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(8192):
                if counted:
                    self.sent += len(data)
                    if self.cut_after is not None and self.sent >= self.cut_after:
                        self.cut()
                    self._delay(len(data))
                if self.is_cut:
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
