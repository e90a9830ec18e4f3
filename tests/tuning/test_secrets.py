"""Errors of libraries are recorded and printed without the values of secret variables."""

import threading
from types import SimpleNamespace

import pytest

from surestep.base.errors import RunError
from surestep.tuning import trial as trial_module
from surestep.tuning.channel import SOCKET
from surestep.tuning.storage import open_storage
from surestep.tuning.worker import Heartbeat


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("SERVICE_TOKEN", "token-of-the-test")


def fail(*_, **__):
    raise RuntimeError("token-of-the-test was rejected\nhint")


def test_failed_heartbeat_is_printed_once_without_secrets(monkeypatch):
    lines = []
    monkeypatch.setattr("surestep.tuning.worker.print_escaped", lambda text, _: lines.append(text))
    beats = iter([lambda: True, fail, fail, fail, lambda: True, fail, fail, lambda: over.set()])
    study, over = SimpleNamespace(beat=lambda _: next(beats)()), threading.Event()
    with Heartbeat(study, SimpleNamespace(number=3), 0.006):
        assert over.wait(60)
    line = "Trial 3: no heartbeat could be written: RuntimeError: *** was rejected"
    assert lines == [line] * 2  # one for each failure that follows a success


def test_storage_that_cannot_be_opened_is_explained_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr("optuna.storages.RDBStorage", fail)
    with pytest.raises(RunError, match=r"cannot be opened: \*\*\* was rejected\. Check"):
        open_storage(tmp_path, f"sqlite:///{tmp_path}/study.db")


def test_reason_of_a_failed_trial_is_recorded_and_printed_without_secrets(monkeypatch, capsys):
    sent = []
    channel = SimpleNamespace(send=sent.append, messages=lambda: iter([{}]), close=lambda: None)
    monkeypatch.setenv(SOCKET, "unused")
    monkeypatch.setattr(trial_module.Channel, "connect", lambda _: channel)
    monkeypatch.setattr(trial_module, "WorkerLink", lambda channel: channel)
    monkeypatch.setattr(trial_module, "_do_job", fail)
    assert trial_module.main([]) != 0
    assert sent[-1] == {"failed": "RuntimeError: *** was rejected\nhint", "rank": 0}
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "RuntimeError: *** was rejected\nhint" in printed
    assert "token-of-the-test" not in printed
