"""One process writes a mirror; a second one is rejected while the first is alive."""

import os
import socket
import threading
import time
from uuid import uuid4

import pytest

from surestep.base.errors import RunError
from surestep.mirror import owner as module
from surestep.mirror.owner import FILE, Owner, OwnerChangedError, read_owner, release_owner
from surestep.mirror.store import Store
from surestep.record.io import dumps


@pytest.fixture
def store():
    return Store(f"memory://{uuid4()}/run")


def written(store, **writer):
    """Write that a process of another machine writes the mirror."""
    known = {"host": "other", "pid": 7, "token": "t", "time": time.time(), **writer}
    store.write(FILE, dumps({"format": 1, "id": "a", "writer": known}).encode())
    return known


def test_released_mirror_can_be_written_by_the_next(store):
    first, second = Owner(store, "a"), Owner(store, "a")
    first.acquire(print)
    with pytest.raises(RunError, match="another session of this process"):
        second.acquire(print)
    first.release()
    second.acquire(print)
    second.release()
    assert read_owner(store)["writer"] is None


def test_start_and_first_checkpoint_are_written_at_once(store):
    owner = Owner(store, "mine", has_started=False)
    owner.acquire(print)
    known = [read_owner(store)]
    owner.start()
    owner.check()
    known.append(read_owner(store))
    owner.record_checkpoint()
    known.append(read_owner(store))
    owner.release()
    assert [(each["started"], each["saved"]) for each in known] == [
        *((False, False), (True, False), (True, True))
    ]


def test_process_that_renews_keeps_the_others_out(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 60.0)
    known = written(store)

    def renew(_):
        written(store, time=time.time())

    monkeypatch.setattr(time, "sleep", renew)
    with pytest.raises(RunError, match=r"process 7 on other.*surestep mirror release memory:"):
        Owner(store, "a").acquire(print)
    assert read_owner(store)["writer"]["token"] == known["token"]


@pytest.mark.parametrize("pid", [2**31 - 7, os.getpid()], ids=["dead", "of this process"])
def test_same_host_name_is_not_the_same_machine(store, pid):
    written(store, host=socket.gethostname(), machine="another", pid=pid)
    lines = []
    owner = Owner(store, "a")
    owner.acquire(lines.append)
    assert "Waiting up to" in lines[0]
    owner.release()


def test_two_addresses_of_one_folder_have_one_writer(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    first = Owner(Store(str(tmp_path / "m")), "a")
    first.acquire(print)
    for address in (f"file://{tmp_path}/m", str(tmp_path / "link" / "m")):
        with pytest.raises(RunError, match="another session of this process"):
            Owner(Store(address), "a").acquire(print)
    first.release()


def test_writer_is_renewed_from_the_start(store, monkeypatch):
    """A model can take minutes to load before the first checkpoint is copied."""
    monkeypatch.setattr(module, "RENEW_S", 0.01)
    owner = Owner(store, "a")
    owner.acquire(print)
    before, renewed, write = read_owner(store), threading.Event(), store.write

    def note(name, data):
        write(name, data)
        renewed.set()

    monkeypatch.setattr(store, "write", note)
    assert renewed.wait(60)
    assert read_owner(store)["writer"]["time"] > before["writer"]["time"]
    owner.release()


@pytest.mark.parametrize("skew_s", [-3000, 0, 3000])
def test_process_that_does_not_renew_is_replaced_whatever_its_clock(store, skew_s):
    written(store, time=time.time() + skew_s)
    lines = []
    owner = Owner(store, "a")
    owner.acquire(lines.append)
    assert read_owner(store)["writer"]["pid"] == os.getpid()
    assert "process 7 on other. Waiting up to" in lines[0]
    owner.release()


@pytest.mark.parametrize(
    "writer",
    [
        {"machine": module.describe_machine(), "pid": 2**31 - 7},
        {"machine": module.describe_machine(), "pid": os.getpid()},
    ],
    ids=["dead", "an earlier session"],
)
def test_process_that_is_known_to_be_gone_is_not_waited_for(store, writer):
    written(store, **writer)
    lines = []
    owner = Owner(store, "a")
    owner.acquire(lines.append)
    assert lines == []
    owner.release()


def sleep_for(monkeypatch, seconds):
    """Let seconds pass in which no thread of this process runs, as if its machine slept."""
    read = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + seconds)


def test_writer_checks_the_mirror_after_its_machine_slept(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 120.0)
    owner = Owner(store, "a")
    owner.acquire(print)
    written(store)
    owner.check()  # it renewed just now, so the mirror is not read
    sleep_for(monkeypatch, 70)
    for _ in range(2):
        with pytest.raises(OwnerChangedError, match="taken over by process 7 on other"):
            owner.check()
    owner.release()
    assert read_owner(store)["writer"]["pid"] == 7


def test_writer_whose_machine_slept_renews_before_it_writes(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 120.0)
    owner = Owner(store, "a")
    owner.acquire(print)
    before = read_owner(store)["writer"]["time"]
    sleep_for(monkeypatch, 70)
    owner.check()
    assert read_owner(store)["writer"]["time"] > before
    owner.release()


def test_released_writer_notices_it(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 0.0)
    owner = Owner(store, "a")
    owner.acquire(print)
    owner.check()
    assert release_owner(store)
    with pytest.raises(OwnerChangedError, match="taken over by a command"):
        owner.check()
    assert read_owner(store)["writer"] is None
    assert not release_owner(store)


class Between:
    """A store whose next write of mirror.json is made after something else happened."""

    def __init__(self, store, act):
        self._store, self._act = store, act

    def __getattr__(self, name):
        return getattr(self._store, name)

    def write(self, path, data):
        act, self._act = self._act, lambda: None
        act()
        self._store.write(path, data)


def test_release_is_not_undone_by_a_renewal_in_the_same_moment(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 0.0)
    owner = Owner(store, "a")
    owner.acquire(print)
    owner.store = Between(store, lambda: release_owner(store))
    owner.check()  # it reads that it is the writer, is released, and writes
    assert read_owner(store)["writer"] is None
    with pytest.raises(OwnerChangedError, match="taken over by a command"):
        owner.check()
    assert not release_owner(store)
    other = Owner(store, "a")
    other.acquire(print)
    assert read_owner(store)["writer"]["token"] == other._token
    other.check()
    other.release()


def test_writer_whose_file_was_deleted_writes_it_again(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 0.0)
    owner = Owner(store, "a")
    owner.acquire(print)
    store.delete([FILE])
    owner.check()
    assert read_owner(store)["writer"]["pid"] == os.getpid()
    owner.release()


def test_session_that_never_wrote_does_not_release_another(store):
    first, second = Owner(store, "a"), Owner(store, "a")
    first.acquire(print)
    for _ in range(2):
        with pytest.raises(RunError, match="another session of this process"):
            second.acquire(print)
        second.try_release()
        second.forget()
    first.release()


def test_check_that_runs_while_the_mirror_is_lost_does_not_pass(store, monkeypatch):
    monkeypatch.setattr(module, "STALE_S", 0.0)
    owner = Owner(store, "a")
    owner.acquire(print)
    written(store)
    forget = owner.forget

    def forget_and_check():
        forget()
        with pytest.raises(OwnerChangedError):
            owner.check()

    monkeypatch.setattr(owner, "forget", forget_and_check)
    with pytest.raises(OwnerChangedError):
        owner.check()


def test_release_that_fails_can_be_tried_again(store, monkeypatch):
    def fail(*_):
        raise ConnectionError("away")

    owner = Owner(store, "a")
    owner.acquire(print)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", fail)
        with pytest.raises(ConnectionError):
            owner.release()
    assert owner.is_owner
    owner.release()
    assert read_owner(store)["writer"] is None


def test_damaged_file_is_named(store):
    store.write(FILE, b'{"format": 1}')
    with pytest.raises(RunError, match=r"mirror\.json is damaged: .*Delete this file"):
        read_owner(store)


def test_renewal_that_hangs_does_not_overwrite_the_next_session(store, monkeypatch):
    """A session that gave up leaves a write that may arrive when the mirror answers again."""
    hangs, answers = threading.Event(), threading.Event()
    first, second = Owner(store, "a"), Owner(store, "a")
    first.acquire(print)
    write = store.write

    def write_later(name, data):
        hangs.set()
        assert answers.wait(60)
        write(name, data)

    monkeypatch.setattr(module, "STALE_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", write_later)
        renewal = threading.Thread(target=first.check)
        renewal.start()
        assert hangs.wait(60)
    first.forget()
    start = threading.Thread(target=second.acquire, args=(print,))
    start.start()
    start.join(0.2)  # long enough to write, if it did not wait
    answers.set()
    start.join(60)
    renewal.join(60)
    assert read_owner(store)["writer"]["token"] == second._token
    assert second.is_owner
    second.release()
