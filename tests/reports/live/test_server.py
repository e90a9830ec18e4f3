"""The server of a live page, asked by plain sockets."""

import json
import socket
from contextlib import closing
from types import SimpleNamespace

import pytest

from surestep.base.errors import ConfigError
from surestep.reports.live import server as server_module
from surestep.reports.live.news import News
from surestep.reports.live.server import serve
from surestep.reports.write import LIVE_ASSETS

PAGE = {
    "kind": "run",
    "run": "a\udcff",  # a folder whose name is not text
    "charts": [],
    "axes": [],
    "marks": [],
}


@pytest.fixture(scope="module")
def server():
    news = News()
    news.publish(PAGE)
    news.report(None, state="running", problem="", step=None)
    with serve(news, LIVE_ASSETS) as address:
        port, token = address.removeprefix("http://127.0.0.1:").strip("/").split("/")
        yield SimpleNamespace(news=news, port=int(port), token=token, address=address)


class Answer(SimpleNamespace):
    """The code, the headers by name in lower case, and the body of an answer."""


def connect(server):
    return closing(socket.create_connection(("127.0.0.1", server.port), timeout=5))


def send(connection, text):
    connection.sendall(text.encode("latin-1"))
    return read(connection)


def read(connection):
    """Return an answer; None if the connection was closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (more := connection.recv(65536)):
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]) and (more := connection.recv(65536)):
        body += more
    return Answer(code=int(first.split()[1]), headers=headers, body=body)


def ask(server, path="", *, method="GET", host=None, more=""):
    host = f"127.0.0.1:{server.port}" if host is None else host
    with connect(server) as connection:
        return send(connection, f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n")


def test_page_has_its_data_and_headers_that_protect_it(server):
    answer = ask(server, f"/{server.token}/")
    assert answer.code == 200
    assert b'"kind":"run"' in answer.body
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.endswith("; frame-ancestors 'none'")
    in_page = answer.body.decode().split('http-equiv="Content-Security-Policy" content="')[1]
    assert policy.startswith(in_page.split('"')[0])
    assert "connect-src 'self';" in policy
    for name, value in {
        "x-content-type-options": "nosniff",
        "cache-control": "no-store",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "server": "surestep",
    }.items():
        assert answer.headers[name] == value
    assert "access-control-allow-origin" not in answer.headers


def test_news_are_what_is_newer(server):
    with connect(server) as connection:  # one connection for both
        host = f"Host: localhost:{server.port}\r\n\r\n"
        answer = send(connection, f"GET /{server.token}/news?after=0 HTTP/1.1\r\n{host}")
        found = json.loads(answer.body)
        assert found["parts"] == PAGE
        version = found["version"]
        again = send(connection, f"GET /{server.token}/news?after={version} HTTP/1.1\r\n{host}")
        assert json.loads(again.body)["parts"] == {}


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/{token}", "/wrong/", "//", "/{short}/", "/{token}x/", "/{token}/../{token}/"),
        *("/{token}/events.jsonl", "/{token}/config.json", "/{token}/../../../etc/passwd"),
        *("/{token}/%2e%2e/%2e%2e/etc/passwd", "/{token}//etc/passwd", "/{token}/news/"),
        *("/{token}/news", "/{token}/news?after=", "/{token}/news?after=-1", "/{token}/?a=1"),
        *("/{token}/news?after=1&after=2", "/{token}/news?after=" + "9" * 19, "/{token}/news%00"),
        *("/?token={token}", "http://[/", "*", "/\xe9/", "/{token}/news?after=\xb2"),
    ],
)
def test_other_paths_are_not_found(server, path):
    answer = ask(server, path.format(token=server.token, short=server.token[:-1]))
    assert answer.code == 404
    assert answer.body == b"Not Found\n"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:{port}", "127.0.0.1", "localhost", "127.0.0.1:1", ""),
        *("127.0.0.1.evil.example:{port}", "localhost:{port}, evil.example", "0.0.0.0:{port}"),
        "127.0.0.1:{port}\r\nHost: evil.example",
    ],
)
def test_other_hosts_are_rejected(server, host):
    answer = ask(server, f"/{server.token}/", host=host.format(port=server.port))
    assert answer.code == 421


def test_request_without_host_is_rejected(server):
    with connect(server) as connection:
        answer = send(connection, f"GET /{server.token}/ HTTP/1.0\r\n\r\n")
    assert answer.code == 421


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("https://127.0.0.1:{port}", 403),
        ("http://127.0.0.1:1", 403),
        ("http://127.0.0.1:{port}", 200),
        ("http://localhost:{port}", 200),
    ],
)
def test_other_origins_are_rejected(server, origin, code):
    more = f"Origin: {origin.format(port=server.port)}\r\n"
    assert ask(server, f"/{server.token}/", more=more).code == code


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "get"])
def test_other_methods_are_rejected(server, method):
    answer = ask(server, f"/{server.token}/", method=method)
    assert (answer.code, answer.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("more", ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"])
def test_request_with_a_body_ends_the_connection(server, more):
    with connect(server) as connection:
        head = f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
        assert send(connection, f"{head}{more}\r\n").code == 400
        assert connection.recv(1) == b""


def test_damaged_requests_are_answered_or_closed_without_a_word(server, capfd):
    for text in ("\r\n\r\n", "GET\r\n\r\n", "A" * 70_000, "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01"):
        with connect(server) as connection:
            connection.sendall(text.encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert ask(server, f"/{server.token}/").code == 200
    assert capfd.readouterr() == ("", "")


def test_clients_that_say_nothing_hold_up_no_other(server):
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    assert ask(server, f"/{server.token}/").code == 200
    for connection in silent:
        connection.close()


def test_clients_that_take_nothing_hold_up_no_other(server):
    server.news.publish({"facts": ["x" * 2**23]})
    request = f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n"
    lazy = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for connection in lazy:
        connection.sendall(request.encode())
    version = server.news.read(0)["version"]
    assert ask(server, f"/{server.token}/news?after={version}").code == 200
    server.news.publish({"facts": []})
    for connection in lazy:
        connection.close()


def test_too_many_connections_are_closed(monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_CONNECTIONS", 2)
    news = News()
    news.publish(PAGE)
    with serve(news, LIVE_ASSETS) as address:
        port = int(address.split(":")[2].split("/")[0])
        known = SimpleNamespace(port=port, token=address.split("/")[3])
        request = f"GET /{known.token}/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"
        with connect(known) as first, connect(known) as second, connect(known) as third:
            assert [send(one, request).code for one in (first, second)] == [200, 200]
            assert third.recv(1) == b""
            assert send(first, request).code == 200


def test_server_listens_on_this_machine_only(server):
    assert server.address == f"http://127.0.0.1:{server.port}/{server.token}/"
    assert len(server.token) == 32
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


@pytest.mark.parametrize("port", [None, 70_000])
def test_port_that_cannot_be_used_is_explained(server, port):
    port = server.port if port is None else port
    error = pytest.raises(ConfigError, match=f"port={port} cannot be used: ")
    with error, serve(News(), LIVE_ASSETS, port):
        pass
