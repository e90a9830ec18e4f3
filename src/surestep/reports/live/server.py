"""The server of a live page: it listens on this machine only, and has two addresses."""

from __future__ import annotations

import re
import secrets
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hmac import compare_digest
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Thread
from typing import Any

from surestep.base.errors import ConfigError
from surestep.reports.live.news import News
from surestep.reports.page import build_policy, encode_json, render_page

_HOST = "127.0.0.1"
_MOST_CONNECTIONS = 64
_TIMEOUT_S = 10.0  # of a connection that sends or takes nothing


@contextmanager
def serve(news: News, assets: Sequence[str], port: int | None = None) -> Iterator[str]:
    """Serve a live page while the block runs; yield its address.

    Args:
        news: what it shows.
        assets: scripts and styles of the page.
        port: to listen on; by default a free one.

    Raises:
        ConfigError: the port cannot be used.
    """
    try:
        server = _Server(news, assets, port or 0)
    except (OSError, OverflowError) as error:
        text = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"port={port} cannot be used: {text}. Choose another, or leave it out for a free one."
        ) from error
    # The thread ends with the process: a request cannot hold up the end of the command.
    Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield f"http://{_HOST}:{server.server_port}/{server.token}/"
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS
    block_on_close = False

    def __init__(self, news: News, assets: Sequence[str], port: int) -> None:
        self.news, self.assets = news, assets
        self.token = secrets.token_urlsafe(24)
        self.policy = f"{build_policy(assets, is_live=True)}; frame-ancestors 'none'"
        self._open: set[socket.socket] = set()
        super().__init__((_HOST, port), _Handler)
        names = (_HOST, "localhost")
        self.hosts = [f"{name}:{self.server_port}" for name in names]
        self.origins = [None, *(f"http://{host}" for host in self.hosts)]

    def server_bind(self) -> None:
        """Bind without a search for the name of this machine, which can take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = _HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; close it if there are too many."""
        if len(self._open) < _MOST_CONNECTIONS:
            self._open.add(request)
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Close all connections too, which browsers keep open."""
        super().server_close()
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a fault of this program; that a browser has gone is none."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        """Answer with the page, or with what is new."""
        known = self.server
        path, _, query = self.path.removeprefix("/").partition("?")
        token, _, name = path.partition("/")
        if self.headers.get("Content-Length", "0") != "0" or self.headers.get("Transfer-Encoding"):
            self.send_error(HTTPStatus.BAD_REQUEST)
        elif self.headers.get_all("Host", []) not in ([host] for host in known.hosts):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif self.headers.get("Origin") not in known.origins:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif not compare_digest(token.encode(), known.token.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif path.endswith("/") and not name and not query:
            data = known.news.read_page()
            page = render_page(f"{data['run']} - surestep", data, known.assets)
            self._send(HTTPStatus.OK, "text/html", page.encode())
        elif name == "news" and (version := _read_version(query)) is not None:
            news = encode_json(known.news.read(version))
            self._send(HTTPStatus.OK, "application/json", news.encode())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a code, and nothing of the request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # another method
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._send(code, "text/plain", f"{HTTPStatus(code).phrase}\n".encode())

    def _send(self, code: int, kind: str, body: bytes) -> None:
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        if code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET"
        if self.close_connection:
            headers["Connection"] = "close"
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name of this program."""
        return "surestep"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _read_version(query: str) -> int | None:
    """Return the version in `after=VERSION`; None if the query has a different form."""
    found = re.fullmatch(r"after=([0-9]{1,18})", query)
    return None if found is None else int(found[1])
