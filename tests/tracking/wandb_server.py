"""A server on loopback with the part of W&B's interface that the values of a run need.

W&B's client, with its service, is the real one. The server stores each row of a file at the offset
that the client names, as W&B does, so a request that is repeated stores nothing twice.
"""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.local_http import LocalHandler, serve

ENTITY = {"id": "entity", "name": "me"}
PROJECT = {"id": "project", "name": "surestep", "entity": ENTITY}
USER = {"id": "user", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
ROWS = "wandb-history.jsonl"


class Server:
    """What the server has.

    Attributes:
        url: of the server.
        runs: the files of each run, as lists of lines by name, by id of the run.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.runs: dict[str, dict[str, list[str]]] = {}

    def rows(self, run_id: str) -> list[dict[str, Any]]:
        """Return the rows of a run, in order."""
        return [json.loads(line) for line in self.runs.get(run_id, {}).get(ROWS, [])]

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a query; what the values of a run do not need has errors."""
        name = variables.get("name")
        if operation == "Viewer":
            return {"data": {"viewer": USER}}
        if operation == "RunResumeStatus":
            return {"data": {"model": {**PROJECT, "bucket": self._describe(str(name))}}}
        if operation == "UpsertBucket":
            is_new = name not in self.runs
            self.runs.setdefault(str(name), {})
            bucket = {**(self._describe(str(name)) or {}), "project": PROJECT}
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": is_new}}}
        return {"data": {}, "errors": [{"message": f"{operation} is not part of this server"}]}

    def _describe(self, run_id: str) -> dict[str, Any] | None:
        if (files := self.runs.get(run_id)) is None:
            return None
        rows = files.get(ROWS, [])
        return {
            **{"id": run_id, "name": run_id, "displayName": run_id, "config": "{}"},
            **{"summaryMetrics": "{}", "wandbConfig": '{"t": 1}', "tags": [], "notes": ""},
            **{"historyLineCount": len(rows), "historyTail": json.dumps(rows[-1:])},
            **{"eventsLineCount": 0, "eventsTail": "[]", "logLineCount": 0},
        }

    def store(self, run_id: str, files: dict[str, Any]) -> None:
        """Store lines of files at their offsets."""
        for name, part in files.items():
            lines, first = self.runs[run_id].setdefault(name, []), part["offset"]
            lines[first : first + len(part["content"])] = part["content"]


@contextmanager
def wandb_server() -> Iterator[Server]:
    """Run a server in threads."""

    class Handler(LocalHandler):
        def do_POST(self) -> None:
            body = self.read_body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            answer: dict[str, Any] = {}  # also to what the client measures of itself
            is_query, is_file = self.path == "/graphql", self.path.endswith("/file_stream")
            request = json.loads(body) if is_query or is_file else {}
            if is_query:
                (operation,) = re.findall(r"^\s*(?:query|mutation)\s+(\w+)", request["query"])
                answer = server.answer(operation, request.get("variables") or {})
            elif is_file:
                server.store(self.path.split("/")[-2], request.get("files") or {})
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.write_body(data)

    with serve(Handler) as port:
        server = Server(port)
        yield server


@contextmanager
def use_server(patch: pytest.MonkeyPatch, url: str, folder: Path) -> Iterator[None]:
    """Have W&B's client use a server, and put its own files into a folder."""
    import wandb

    for name, value in (
        ("HOME", str(folder / "home")),
        ("WANDB_DATA_DIR", str(folder / "data")),
        ("WANDB_ERROR_REPORTING", "false"),
        ("WANDB_API_KEY", "a" * 40),
        ("WANDB_BASE_URL", url),
    ):
        patch.setenv(name, value)
    wandb.teardown()  # a process has one service, and its settings
    try:
        yield
    finally:
        wandb.teardown()
