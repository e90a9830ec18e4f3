"""A mirror behind SSH, on a server on loopback that is killed and suspended."""

import shutil
import threading
from pathlib import Path
from threading import Event

import pytest

import surestep
from surestep.base.errors import RunError
from surestep.cli.main import main
from surestep.mirror import ssh, uploader
from surestep.mirror.owner import read_owner
from surestep.mirror.store import Store, hash_bytes, hash_file
from tests.mirror.runs import STEPS, check_mirror, last_weights, names, train
from tests.mirror.ssh_server import SSHServer
from tests.needs import needs

paramiko = needs("paramiko")


@pytest.fixture
def server(monkeypatch):
    server = SSHServer()
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        server.start()
        yield server
    finally:
        server.delete()


@pytest.fixture
def address(server):
    return server.address


def test_run_is_mirrored_and_resumed_on_an_empty_machine(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = train(tmp_path / "plain")
    first = train(address, max_steps=6)
    assert check_mirror(address) == names(first.path)
    shutil.rmtree("runs")
    run = train(address, seed=3)  # other initial weights
    assert last_weights(run) == last_weights(plain)
    assert [event["step"] for event in run.events() if event["event"] == "resume"] == [6]
    assert check_mirror(address) == names(run.path)
    assert read_owner(Store(address))["writer"] is None


def test_killed_server_is_reported_once_and_made_up_for(server, address, tmp_path, monkeypatch):
    failed = Event()
    fail = uploader.Uploader._fail

    def note_failure(self, error):
        failed.set()
        return fail(self, error)

    monkeypatch.setattr(uploader.Uploader, "_fail", note_failure)

    class Kill(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 4:
                server.stop()
            if state.progress.step == 10:
                assert failed.wait(60)
                server.start()

    run = train(tmp_path / "run", address, callbacks=[Kill()], **{"checkpoint.every": "1 step"})
    assert check_mirror(address) == names(run.path)
    notices = [event["text"] for event in run.events() if event["event"] == "notice"]
    assert sum("takes no copies" in text for text in notices) == 1


def test_dead_server_at_the_start_is_an_outage_of_a_local_run(server, address, tmp_path):
    server.stop()

    class Start(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 6:
                server.start()

    run = train(tmp_path / "run", address, callbacks=[Start()])
    assert check_mirror(address) == names(run.path)


def test_dead_server_is_an_error_if_the_run_is_there(server, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server.stop()
    with pytest.raises(RunError, match=r"cannot be reached: .*--run runs/sftp-"):
        train(address)


def test_dead_server_at_the_end_leaves_the_rest_to_push(
    server, address, tmp_path, monkeypatch, capsys
):
    class Kill(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == STEPS - 1:
                server.stop()

    monkeypatch.setattr(uploader, "STALLED_S", 0.5)
    run = train(tmp_path / "run", address, callbacks=[Kill()])
    server.start()
    assert main(["mirror", "push", str(run.path)]) == 0
    assert check_mirror(address) == names(run.path)
    assert main(["mirror", "fetch", address, str(tmp_path / "here")]) == 0
    assert main(["ckpt", "verify", address]) == 0
    assert capsys.readouterr().out.count("good, ") == len(names(run.path))
    here = surestep.Run(tmp_path / "here")
    assert last_weights(here) == last_weights(run)
    assert all(found.verified for found in here.verify())


def test_file_is_replaced_at_once_and_its_bytes_are_compared(address, tmp_path, monkeypatch):
    monkeypatch.setattr("surestep.mirror.store.PART", 100_000)
    store, path = Store(address), tmp_path / "file"
    assert store.list() == {}
    path.write_bytes(bytes(range(256)) * 1000)
    store.write("checkpoints/step-00000003/model", b"{}")
    store.upload("checkpoints/step-00000003/model", path, hash_file(path))
    assert store.list() == {"checkpoints/step-00000003/model": 256_000}
    assert store.read("checkpoints/step-00000003/model") == path.read_bytes()
    assert not store.has("checkpoints/step-00000003/model", hash_bytes(bytes(256_000)))
    assert not store.has("none", hash_bytes(b""))
    store.delete(["none", "checkpoints/step-00000003/model"])
    store.delete_empty_folder("checkpoints/step-00000003")
    with pytest.raises(FileNotFoundError):
        store.read("checkpoints/step-00000003/model")
    with pytest.raises(FileNotFoundError):
        store._fs.info(store._path("checkpoints/step-00000003"))


def test_upload_reports_its_progress(address, tmp_path, monkeypatch):
    monkeypatch.setattr("surestep.mirror.store._CHUNK", 1000)
    store, path, seen = Store(address), tmp_path / "file", []
    path.write_bytes(bytes(5000))
    monkeypatch.setattr(store.progress, "begin", lambda *_: seen.append)
    store.upload("file", path, hash_file(path))
    assert seen[:5] == [1000, 2000, 3000, 4000, 5000]


def test_file_of_a_killed_process_is_removed(server, address):
    store = Store(address)
    store.write("model", b"{}")
    store.write("checkpoints/step-00000003/.part-0-model", b"{}")
    store.remove_partial_uploads()
    assert [path.name for path in server.path.rglob("*") if path.is_file()] == ["model"]


def test_threads_do_not_share_a_connection(address):
    store, wrong = Store(address), []

    def work(number):
        data = bytes([number]) * 50_000
        for _ in range(20):
            store.write(f"{number}", data)
            if store.read(f"{number}") != data:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
    assert len(store.list()) == 4


def test_connection_of_a_thread_is_closed_when_it_ends(server, address):
    store, before = Store(address), set(threading.enumerate())
    thread = threading.Thread(target=store.list)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    for each in set(threading.enumerate()) - before:
        if isinstance(each, paramiko.Transport):  # it may be ending
            each.join(60)
            assert not each.is_alive()


def test_server_that_does_not_answer_is_noticed(server, address, monkeypatch):
    monkeypatch.setattr(ssh, "_ANSWER_S", 5.0)
    store = Store(address)
    store.write("file", b"{}")
    server.suspend()
    with pytest.raises(TimeoutError):
        store.list()
    server.stop()
    server.start()
    assert store.list() == {"file": 2}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("no key", r"Add a key to the SSH agent or to ~/\.ssh"),
        ("other key", r"Add a key to the SSH agent or to ~/\.ssh"),
        ("unknown host", "Connect to it once with ssh"),
        ("other host", "does not match"),
    ],
)
def test_rejected_connection_is_an_error_before_training(server, address, tmp_path, change, text):
    known = server.home / ".ssh"
    if change == "unknown host":
        (known / "known_hosts").unlink()
    elif change == "other host":
        server.create_key(tmp_path / "other")
        server.trust(tmp_path / "other.pub")
    else:
        (known / "id_ed25519").unlink()
        if change == "other key":
            server.create_key(known / "id_ed25519")
    with pytest.raises(RunError, match=f"^{address} rejects this process: .*{text}"):
        train(tmp_path / "run", address)
    assert not (tmp_path / "run").exists()


def test_key_of_the_configuration_of_fsspec_is_used(server, address, monkeypatch):
    key = Path(shutil.move(server.home / ".ssh" / "id_ed25519", server.home / "key"))
    monkeypatch.setattr("fsspec.config.conf", {"sftp": {"key_filename": str(key)}})
    Store(address).write("file", b"{}")
    assert (server.path / "file").read_bytes() == b"{}"
    key.unlink()
    with pytest.raises(ConnectionError, match="key"):  # not an empty mirror
        Store(address).list()
