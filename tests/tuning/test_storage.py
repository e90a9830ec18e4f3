import errno
import os
import re
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest

from surestep.base.errors import ConfigError, RunError
from surestep.tuning.open import read_study
from surestep.tuning.storage import (
    JOURNAL,
    Outage,
    open_storage,
    persist,
    persist_while_up,
    require_optuna,
    without_password,
)
from tests.tuning.studies_on_disk import make_study, run_all


def test_optuna_prints_nothing(tmp_path, capfd):
    run_all(make_study(tmp_path))
    assert capfd.readouterr() == ("", "")


def test_missing_optuna_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"needs Optuna.*Install it: pip install optuna"):
        require_optuna()


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        (None, None),
        ("postgresql://me:pw@host:5432/db", "postgresql://me@host:5432/db"),
        (
            "postgresql+psycopg2://me:p%40w@host/db?sslmode=require&sslpassword=x",
            "postgresql+psycopg2://me@host/db?sslmode=require",
        ),
        ("mysql+pymysql://me:pw@host/db?passwd=y", "mysql+pymysql://me@host/db"),
    ],
)
def test_password_is_removed_from_a_url(url, recorded):
    assert without_password(url) == recorded


def test_path_of_sqlite_is_recorded_in_full(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert without_password("sqlite:///study.db") == f"sqlite:///{tmp_path}/study.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("study.db", r"--storage study\.db\.\.\. is not the URL of a database"),
        ("postgres//me:secret@host", "is not the URL of a database"),
        ("redis://me:secret@host", r"--storage redis\.\.\. is not a database that"),
        ("nosuch://me:secret@host/db", "is not"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("postgresql://me:secret@host:port/db", "is not the URL of a database"),
    ],
)
def test_url_that_cannot_be_used_is_explained_without_its_password(url, message):
    with pytest.raises(ConfigError, match=message) as error:
        without_password(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("driver", "package"), [("psycopg", r"'psycopg\[binary\]'"), ("psycopg2", "psycopg2-binary")]
)
def test_missing_driver_is_named_with_its_command(driver, package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ConfigError, match=f"Install it: pip install {package}") as error:
        open_storage(tmp_path, f"postgresql+{driver}://me:secret@host/db")
    assert "secret" not in str(error.value)


def test_database_that_does_not_answer_is_explained_without_the_password(tmp_path):
    pytest.importorskip("psycopg2")
    with pytest.raises(RunError, match=r"me:\*\*\*@127.* cannot be opened: .*refused"):
        open_storage(tmp_path, "postgresql+psycopg2://me:secret@127.0.0.1:1/db")


def test_file_that_is_not_a_database_is_explained(tmp_path):
    (tmp_path / "study.db").write_text("text " * 1000, encoding="utf-8")
    with pytest.raises(RunError, match=r"study\.db cannot be opened: file is not a database"):
        open_storage(tmp_path, f"sqlite:///{tmp_path}/study.db")


def test_folder_that_is_missing_is_explained(tmp_path):
    with pytest.raises(RunError, match=r"study\.log cannot be opened: No such file"):
        open_storage(tmp_path / "none", None)
    with pytest.raises(RunError, match=r"cannot be opened: unable to open database file"):
        open_storage(tmp_path, f"sqlite:///{tmp_path}/none/study.db")


def test_line_that_a_killed_process_did_not_complete_is_removed(tmp_path):
    study = make_study(tmp_path, trials=3)
    first = study.claim_trial()
    journal = tmp_path / JOURNAL
    before = journal.read_bytes()
    with journal.open("ab") as file:
        file.write(b'{"op_code":8,"worker')
    assert [row.number for row in make_study(tmp_path, trials=3).rows()] == [0]
    study.finish(first, [1.0])
    assert journal.read_bytes().startswith(before + b'{"op_code"')
    run_all(make_study(tmp_path, trials=3))
    assert [row.state for row in study.rows()] == ["finished"] * 3


@pytest.mark.parametrize("damage", [b"garbage\n", b"12\n\n", b"\xff\x00\r\n"])
def test_damage_after_the_last_record_is_set_aside(tmp_path, damage):
    study = make_study(tmp_path, trials=2)
    run_all(study)
    rows = study.rows()
    journal = tmp_path / JOURNAL
    before = journal.read_bytes()
    journal.write_bytes(before + damage)
    with pytest.warns(UserWarning, match=r"study\.log was damaged: its last .*study-damaged-1"):
        study = make_study(tmp_path, trials=3)
    assert study.rows() == rows
    assert (tmp_path / "study-damaged-1.log").read_bytes() == damage
    assert journal.read_bytes() == before
    run_all(study)
    assert [row.state for row in read_study(tmp_path).rows()] == ["finished"] * 3


def test_reading_a_study_writes_nothing(tmp_path):
    run_all(make_study(tmp_path, trials=2))
    (tmp_path / f"{JOURNAL}.lock").unlink()
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code":8,"worker')
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(read_study(tmp_path).rows()) == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_journal_is_locked_where_the_file_system_has_no_locks(tmp_path, monkeypatch):
    def reject(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("surestep.tuning.lock.fcntl.lockf", reject)
    locked = []
    create = os.symlink
    monkeypatch.setattr(os, "symlink", lambda *paths: (locked.append(paths[1]), create(*paths)))
    run_all(make_study(tmp_path, trials=2))
    assert locked
    assert not list(tmp_path.glob("*.lock.*"))
    assert len(read_study(tmp_path).rows()) == 2


def test_damaged_journal_is_explained(tmp_path):
    run_all(make_study(tmp_path, trials=3))
    journal = tmp_path / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:4], b"{damaged\n", *lines[4:]]))
    with pytest.raises(RunError, match=r"study\.log cannot be opened: .* Put a copy of it back"):
        make_study(tmp_path, trials=3)


def test_only_one_worker_takes_a_waiting_trial_of_sqlite(tmp_path):
    """Without a lock over the whole transaction, two of them read that it waits, and both win."""
    url = f"sqlite:///{tmp_path}/study.db"
    workers = [open_storage(tmp_path, url) for _ in range(4)]
    study = optuna.create_study(storage=workers[0])
    waiting, running = optuna.trial.TrialState.WAITING, optuna.trial.TrialState.RUNNING
    start = threading.Barrier(4)

    def take(storage, trial_id):
        start.wait()
        return storage.set_trial_state_values(trial_id, running)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            study.add_trial(optuna.trial.create_trial(state=waiting))
            trial_id = study.trials[-1]._trial_id
            won = list(pool.map(lambda worker, at=trial_id: take(worker, at), workers))
            assert sum(won) == 1


def test_sqlite_waits_for_another_worker_instead_of_failing(tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    study = make_study(tmp_path / "study", url)
    other = sqlite3.connect(tmp_path / "study.db", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.5, other.execute, ["COMMIT"])
    release.start()
    assert study.claim_trial().number == 0
    release.join()
    other.close()


class Broken:
    """A study whose database fails some times before it works."""

    folder, settings = Path("searches/my study"), SimpleNamespace(storage="postgresql://me@db/s")

    def __init__(self, error, times):
        self.error, self.left, self.outage = error, times, Outage()

    def request(self):
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return "found"

    read = persist(request)
    beat = persist_while_up(request)


@pytest.fixture
def waits(monkeypatch):
    found = []
    monkeypatch.setattr("surestep.tuning.storage.time.sleep", found.append)
    return found


COMMIT = optuna.exceptions.StorageInternalError("An exception is raised during the commit.")


def test_request_to_a_database_is_repeated(waits, capsys):
    assert Broken(COMMIT, times=2).read() == "found"
    assert waits == [1, 2]
    assert capsys.readouterr().err == ""


def test_database_that_stays_away_ends_the_worker_with_its_message(waits):
    error = optuna.exceptions.StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = sqlite3.OperationalError("server closed the connection\nmore")
    command = "surestep search --resume 'searches/my study' --storage URL"
    message = f"does not answer: server closed the connection. To continue once it does: {command}"
    with pytest.raises(RunError, match=re.escape(message)):
        Broken(error, times=9).read()
    assert waits == [1, 2, 4, 8]


def test_outage_of_a_database_is_printed_once_after_three_seconds_and_so_is_its_end(waits, capsys):
    study = Broken(COMMIT, times=8)
    for _ in range(2):
        with suppress(RunError):
            study.read()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "does not answer: An exception is raised during the commit" in lines[0]
    assert "repeated for 15 s" in lines[0]
    assert lines[1] == "The database of the study answers again."
    assert study.read() == "found"
    assert capsys.readouterr().err == ""


def test_heartbeat_does_not_wait_again_for_a_database_that_stays_away(waits):
    study = Broken(COMMIT, times=6)
    for expected in ([1, 2, 4, 8], []):
        waits.clear()
        with pytest.raises(RunError):
            study.beat()
        assert waits == expected
    assert study.beat() == "found"
    study.left = 1
    assert study.beat() == "found"
    assert waits == [1]


def test_full_disk_is_explained(waits):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(RunError, match=r"No space left on device\. Free some space"):
        Broken(error, times=1).read()
    assert waits == []
