"""An HTTP server of a test, in threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalHandler(BaseHTTPRequestHandler):
    """Answers requests, and prints none."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # the body of an answer would wait 40 ms

    def read_body(self) -> bytes:
        """Return the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def write_body(self, data: bytes) -> None:
        """Write the body of the answer, unless the client has given up or was killed."""
        with suppress(OSError):
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serve(handler: type[LocalHandler]) -> Iterator[int]:
    """Run a server on a free port, and yield the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
