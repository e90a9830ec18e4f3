"""What CI runs with a second release of torch, without installing it."""

import subprocess
from pathlib import Path

import pytest

from tests.versions import __main__ as versions
from tests.versions.checks import CheckError

GONE = subprocess.CalledProcessError(1, "pip")
LATE = subprocess.TimeoutExpired("pip", 90.0)


def fail(error):
    def call(*args):
        raise error

    return call


@pytest.mark.parametrize(
    ("installing", "testing", "code", "text"),
    [
        (None, None, 0, "torch 9.9.0: the tests of watch and the core of the laws passed."),
        (GONE, None, 0, "torch 9.9.0 was not run: it cannot be installed here."),
        (LATE, None, 0, "torch 9.9.0 was not run to the end: 90 s were over."),
        (None, LATE, 0, "torch 9.9.0 was not run to the end: 90 s were over."),
        (None, CheckError("a law is broken"), 1, "torch 9.9.0: a law is broken"),
    ],
)
def test_ci_fails_for_a_failed_test_only(
    monkeypatch, capsys, tmp_path, installing, testing, code, text
):
    install = fail(installing) if installing else lambda *args: Path("python")
    monkeypatch.setattr(versions, "install", install)
    monkeypatch.setattr(versions, "run_some_watch_tests", lambda place: None)
    run_laws = fail(testing) if testing else lambda place: None
    monkeypatch.setattr(versions, "run_laws", run_laws)
    assert versions.run_ci(tmp_path, "9.9.0", "python3") == code
    assert capsys.readouterr().out == f"{text}\n"
