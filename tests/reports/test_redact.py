"""A page that is redacted does not tell who trained where."""

import getpass
import json
import socket
from pathlib import Path

import pytest

from surestep.record.run import Run
from surestep.reports.redact import redact
from surestep.reports.write import as_lists, describe
from tests.reports.folders import evaluation, log_point, write_run


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("in /home/ada/code/train.py, line 3", "in .../train.py, line 3"),
        ("surestep resume '/data/my runs/a'", "surestep resume '.../a'"),
        ("s3://bucket/team/run", ".../run"),
        ("~/runs/a and C:\\Users\\ada\\a", ".../a and .../a"),
        ("val/loss, 12 items/s, 1/2 of it", "val/loss, 12 items/s, 1/2 of it"),
        ("surestep resume '../ada/my runs/a'", "surestep resume '.../a'"),
        ("runs/a", "runs/a"),
        ("surestep resume ../ada/team/a, then ./x/b", "surestep resume .../a, then .../b"),
    ],
)
def test_paths_lose_their_folders(text, kept):
    assert redact({"text": [text]}) == {"text": [kept]}


def test_typed_paths_lose_their_folders():
    texts = ["surestep evaluate team/ada/runs/a", "val/loss of 'team/ada/runs/ab'", "team/ada/run"]
    assert redact({"texts": texts}, ["team/ada/runs/a", "team/ada/runs/ab"])["texts"] == [
        *("surestep evaluate .../a", "val/loss of '.../ab'", "team/ada/run")
    ]


def test_host_and_user_are_left_out(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    found = redact({"a": "ada on node-17; adam stays", "environment": {"b": 1}})
    assert found == {"a": "... on ...; adam stays", "environment": {}}


@pytest.mark.parametrize("count", [1, 2])
def test_nothing_of_the_machine_is_in_the_numbers_of_a_page(tmp_path, monkeypatch, count):
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17")
    finding = {
        **dict.fromkeys(("rule", "severity", "fix"), "SS101"),
        **{"message": f"in {tmp_path}/x.py on node-17", "file": f"{tmp_path}/x.py"},
    }
    runs = [
        write_run(
            tmp_path / f"run{number}",
            [log_point(1, [1.0]), evaluation(1, 1.0)],
            ending={"findings": [finding]},
            environment={"executable": "/home/ada/bin/python", "host": "node-17"},
        )
        for number in range(count)
    ]
    named = {str(path): Run(path) for path in runs}
    text = json.dumps(as_lists(describe(named, redacted=True)))
    for secret in (str(tmp_path), "node-17", "/home/ada", str(Path.home()) + "/"):
        assert secret not in text
    assert "node-17" in json.dumps(as_lists(describe(named))) or count > 1
