"""A proxy on loopback before a server: it can lose answers, delay them, or not answer at all."""

import http.client
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tests.tracking.local_http import LocalHandler, serve

_OF_A_CONNECTION = {"connection", "transfer-encoding", "content-length"}
_NUMBERS = re.compile(r"m-[0-9a-f]{32}|[0-9a-f]{32}|(?<=/artifacts/)\d+(?=/)")


class Proxy:
    """What happens to the requests that a proxy passes on.

    Attributes:
        url: of the proxy.
        lost: kinds of requests whose next answer is lost: the server does what it is asked, and
            the connection closes without an answer.
        delay_s: before each answer.
        is_hanging: requests are read, and get no answer until this is False.
        is_unavailable: each answer is a 503, and no request is passed on.
        disturbed: how many requests were delayed, rejected, or got no answer.
        requests: the kind of each request, such as "POST /api/2.0/mlflow/runs/create".
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.lost: list[str] = []
        self.delay_s = 0.0
        self.is_hanging = False
        self.is_unavailable = False
        self.disturbed = 0
        self.requests: list[str] = []


@contextmanager
def proxy_of(url: str) -> Iterator[Proxy]:
    """Run a proxy of a server in threads."""
    ended = threading.Event()

    class Handler(LocalHandler):
        def _pass_on(self) -> None:
            body = self.read_body()
            kind = f"{self.command} {_NUMBERS.sub('*', urlsplit(self.path).path)}"
            proxy.requests.append(kind)
            proxy.disturbed += bool(proxy.is_hanging or proxy.delay_s or proxy.is_unavailable)
            while proxy.is_hanging and not ended.is_set():
                time.sleep(0.05)
            time.sleep(proxy.delay_s)
            if proxy.is_unavailable:
                self.send_response(503)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            server = http.client.HTTPConnection(str(urlsplit(url).netloc), timeout=60)
            try:
                server.request(self.command, self.path, body, dict(self.headers))
                answer = server.getresponse()
                data = answer.read()
            except OSError:
                self.close_connection = True
                return
            finally:
                server.close()
            if kind in proxy.lost:
                proxy.lost.remove(kind)
                proxy.disturbed += 1
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_A_CONNECTION:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(data)))
            self.end_headers()
            self.write_body(data)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

    with serve(Handler) as port:
        proxy = Proxy(port)
        try:
            yield proxy
        finally:
            ended.set()
