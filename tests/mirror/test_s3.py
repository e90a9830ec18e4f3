"""A mirror in S3, on a server on loopback that is cut, slowed and killed in the middle."""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

import surestep
from surestep.base.errors import RunError
from surestep.mirror import progress, uploader
from surestep.mirror import store as module
from surestep.mirror.fetch import fetch_run
from surestep.mirror.owner import read_owner
from surestep.mirror.store import PART, Store, hash_file
from tests.mirror.runs import STEPS, check_mirror, last_weights, names, train
from tests.mirror.servers import BUCKET, Proxy, S3Server, s3_environment
from tests.mirror.test_uploader import wait_until
from tests.needs import needs
from tests.warm import warm_python

needs("s3fs")
needs("moto")
LARGE = """
import torch
from torch import nn
import surestep

x = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
config = surestep.Config(
    epochs=10,
    batch_size=16,
    checkpoint=surestep.Checkpoint(every="40 steps"),
    logging=surestep.Logging(every="5 steps"),
)

class Slow(surestep.Callback):
    def on_step(self, state, result):
        import time
        time.sleep(0.005)

callbacks = [Slow()]

def task():
    model = lambda: nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
    return surestep.Task(model, "mse", (x, x), val=(x[:64], x[:64]))
"""


@pytest.fixture(scope="module")
def server():
    with S3Server() as server:
        yield server


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy to the server, which has a bucket."""
    proxy = Proxy(server.endpoint)
    for name, value in s3_environment(proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    create_bucket(server)
    yield proxy
    proxy.close()


def create_bucket(server):
    with closing(needs("boto3").client("s3", endpoint_url=server.endpoint)) as client:
        client.create_bucket(Bucket=BUCKET)


@pytest.fixture
def address(request):
    return f"s3://{BUCKET}/runs/{request.node.name[:60].replace('[', '-').rstrip(']')}"


def open_uploads():
    with closing(needs("boto3").client("s3")) as client:
        return client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])


def test_run_is_mirrored_and_resumed_on_an_empty_machine(proxy, address, tmp_path, monkeypatch):
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


def test_checksums_of_s3_are_used_and_nothing_is_read_back(proxy, address, tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "sha256", lambda *_: pytest.fail("it was read back"))
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2 * PART + 5))  # three parts
    store = Store(address)
    store.upload("large", path, hash_file(path))
    store.write("small", b"{}")
    assert store.has("large", hash_file(path))


def test_upload_of_parts_that_fails_leaves_nothing(proxy, address, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3 * PART))
    store = Store(address)
    store.write("small", b"{}")
    proxy.cut_after = proxy.sent + PART
    with pytest.raises(Exception, match=r"."):  # whatever the driver raises
        store.upload("large", path, hash_file(path))
    proxy.restore()
    assert store.list() == {"small": 2}
    store.remove_partial_uploads()
    assert open_uploads() == []
    store.upload("large", path, hash_file(path))


def test_cut_connection_is_reported_and_made_up_for(proxy, address, tmp_path, monkeypatch):
    failed = Event()
    fail = uploader.Uploader._fail

    def note_failure(self, error):
        failed.set()
        return fail(self, error)

    monkeypatch.setattr(uploader.Uploader, "_fail", note_failure)

    class Cut(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 4:
                proxy.cut_after = proxy.sent + 500
            if state.progress.step == 10:
                assert failed.wait(60)
                proxy.restore()

    run = train(tmp_path / "run", address, callbacks=[Cut()], **{"checkpoint.every": "1 step"})
    assert check_mirror(address) == names(run.path)
    told = [e["text"] for e in run.events() if e["event"] == "notice" and address in e["text"]]
    assert "takes no copies" in told[0]
    assert len(told) <= 2


def test_slow_connection_does_not_slow_the_steps(proxy, address, tmp_path, monkeypatch):
    monkeypatch.setattr(uploader, "STALLED_S", 0.0)
    uploads, upload = [], Store.upload

    def note(store, name, *more):
        uploads.append("begun")
        upload(store, name, *more)
        uploads.append("ended")

    class Slow(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 1:
                proxy.rate = 20.0  # a minute for a request
                monkeypatch.setattr(Store, "upload", note)
            if state.progress.step == STEPS:
                assert "ended" not in uploads

    train(tmp_path / "run", address, callbacks=[Slow()])
    proxy.restore()


def test_dead_server_at_the_start_is_an_outage_of_a_local_run(proxy, address, tmp_path):
    proxy.cut()

    class Restore(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 6:
                proxy.restore()

    run = train(tmp_path / "run", address, callbacks=[Restore()])
    assert check_mirror(address) == names(run.path)


def impatient(monkeypatch):
    """Have the driver wait for a second in place of a minute."""
    monkeypatch.setattr(module, "_S3", {"read_timeout": 1, "retries": {"total_max_attempts": 2}})


def test_driver_waits_at_most_a_minute_for_a_server_that_hangs():
    attempts = module._S3["retries"]["total_max_attempts"] * module._S3_ATTEMPTS
    assert module._S3["read_timeout"] * attempts <= 60


def test_upload_to_a_server_that_hangs_ends(proxy, address, monkeypatch):
    """The driver itself waits for ever: it asks the server whether to send the body."""
    store = Store(address)
    store.write("small", b"{}")
    monkeypatch.setattr(progress, "LONGEST_S", 0.5)
    proxy.hold()
    with pytest.raises(TimeoutError, match=r"it has not answered for [0-9]+ s"):
        store.write("small", b"[]")
    proxy.restore()
    monkeypatch.setattr(progress, "LONGEST_S", 60.0)
    store.write("small", b"[]")
    assert store.read("small") == b"[]"


def test_server_that_hangs_at_the_start_is_an_outage_of_a_local_run(
    proxy, address, tmp_path, monkeypatch, capfd
):
    impatient(monkeypatch)
    proxy.hold()

    class Restore(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 6:
                proxy.restore()

    run = train(tmp_path / "run", address, callbacks=[Restore()])
    assert check_mirror(address) == names(run.path)
    assert "takes no copies: ReadTimeoutError: Read timeout on endpoint" in capfd.readouterr().err


def test_server_that_hangs_is_reported_before_the_driver_gives_up(
    proxy, address, tmp_path, monkeypatch
):
    monkeypatch.setattr(uploader, "HANGING_S", 0.5)
    stores, silent_s = set(), Store.silent_s

    def record(store):
        stores.add(store)
        return silent_s(store)

    monkeypatch.setattr(Store, "silent_s", record)

    class Hold(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == 4:
                proxy.hold()
            if state.progress.step == 10:
                wait_until(lambda: any(silent_s(store) > 0.5 for store in stores))
            if state.progress.step == 12:
                proxy.restore()

    run = train(tmp_path / "run", address, callbacks=[Hold()], **{"checkpoint.every": "1 step"})
    assert check_mirror(address) == names(run.path)
    texts = [e["text"] for e in run.events() if e["event"] == "notice" and address in e["text"]]
    assert "takes no copies: it has not answered for " in texts[0]


def test_server_that_hangs_is_an_error_if_the_run_is_there(
    proxy, address, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    impatient(monkeypatch)
    monkeypatch.setattr(module, "SILENT_S", 0.1)
    proxy.hold()
    with pytest.raises(RunError, match=r"cannot be reached: Read timeout .*--run runs/s3-"):
        train(address)
    assert f"{address} does not answer yet. Ctrl-C ends the wait" in capfd.readouterr().err


def test_dead_server_is_an_error_if_the_run_is_there(proxy, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    proxy.cut()
    with pytest.raises(RunError, match=r"cannot be reached: .*--run runs/s3-bucket"):
        train(address)


def test_dead_server_at_the_end_does_not_fail_the_run(proxy, address, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(uploader, "STALLED_S", 1.0)

    class Cut(surestep.Callback):
        def on_step(self, state, result):
            if state.progress.step == STEPS - 1:
                proxy.cut()

    run = train(tmp_path / "run", address, callbacks=[Cut()])
    assert run.status["status"] == "finished"
    assert "To copy the rest: surestep mirror push" in capfd.readouterr().err
    proxy.restore()
    monkeypatch.setattr(uploader, "STALLED_S", 60.0)
    train(run.path, address)
    assert check_mirror(address) == names(run.path)


def test_missing_bucket_is_an_error_before_training(proxy, tmp_path):
    with pytest.raises(RunError, match="There is no bucket or disk for s3://other/run"):
        train(tmp_path / "run", "s3://other/run")
    assert not (tmp_path / "run").exists()


def test_missing_credentials_are_an_error_before_training(proxy, address, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(RunError, match="There are no credentials for s3://bucket"):
        train(tmp_path / "run", address)


def test_credentials_are_not_written_into_the_run(proxy, address, tmp_path):
    run = train(tmp_path / "run", address)
    store = Store(address)
    texts = [path.read_bytes() for path in run.path.rglob("*") if path.is_file()]
    texts += [store.read(name) for name in store.list()]
    assert not [text for text in texts if b"of-the-test" in text]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.py").write_text(LARGE)
    return tmp_path / "large.py"


# Renews its ownership more often than the default, to keep the tests short.
START = """
import sys
from surestep.mirror import owner
owner.RENEW_S = 0.5
from surestep.cli.main import main
sys.exit(main(["train", *sys.argv[1:]]))
"""


@contextmanager
def training(recipe, address, *more):
    """Train the recipe in a process of its own, which is killed at the end of the block."""
    words = [warm_python(), "-c", START, str(recipe), "--run", address, *more]
    pipe = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(words, **pipe) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                with suppress(ValueError):  # the run has not begun
                    os.kill(pid_of_run(), signal.SIGKILL)
            process.kill()


def pid_of_run():
    """Return the process that trains: that of `warm_python` is a client of it."""
    (lock,) = Path("runs").glob("*/lock")
    return json.loads(lock.read_text())["pid"]


def train_to_the_end(recipe, address):
    with training(recipe, address) as process:
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


@pytest.mark.parametrize("bytes_sent", [300_000, 2_000_000])
def test_run_killed_during_an_upload_is_completed_by_the_next(proxy, address, recipe, bytes_sent):
    train_to_the_end(recipe, "runs/whole")
    last = names(Path("runs/whole"))[-1]
    weights = (Path("runs/whole") / "checkpoints" / last / "model.safetensors").read_bytes()
    shutil.rmtree("runs")
    proxy.rate = 1e6
    with training(recipe, address):
        proxy.wait_for(bytes_sent)
    proxy.restore()
    check_mirror(address)
    shutil.rmtree("runs")
    train_to_the_end(recipe, address)
    (folder,) = Path("runs").iterdir()
    assert check_mirror(address) == names(folder)
    assert (folder / "checkpoints" / last / "model.safetensors").read_bytes() == weights
    assert open_uploads() == []


def test_server_that_is_killed_and_loses_its_data_gets_the_full_run_again(
    proxy, server, address, recipe
):
    """As with a store on one machine, such as MinIO, that crashes and gets an empty disk."""
    proxy.rate = 1e6
    with training(recipe, address) as process:
        proxy.wait_for(proxy.sent + 300_000)  # within the weights of the first checkpoint
        server.kill()
        proxy.restore()
        server.start()
        create_bucket(server)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    (folder,) = Path("runs").iterdir()
    if (
        "To copy the rest: surestep mirror push" in err
    ):  # a request was lost, and its time limit is longer
        push = [sys.executable, "-m", "surestep", "mirror", "push", str(folder)]
        subprocess.run(push, check=True, timeout=120)
    assert check_mirror(address) == names(folder)
    assert Store(address).list().keys() >= {"config.json", "events.jsonl", "status.json"}
    shutil.rmtree("runs")
    train_to_the_end(recipe, address)


def test_ctrl_c_saves_and_copies_the_last_step(proxy, address, recipe):
    with training(recipe, address) as process:
        proxy.wait_for(1_000_000)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert f"surestep train {recipe} --run {address}" in err
    (folder,) = Path("runs").iterdir()
    assert check_mirror(address) == names(folder)
    assert read_owner(Store(address))["writer"] is None


def test_second_machine_is_rejected_while_the_first_trains(proxy, address, recipe, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
    monkeypatch.setattr("surestep.mirror.owner.STALE_S", 60.0)
    with training(recipe, address, "--epochs", "400"):
        proxy.wait_for(300_000)
        with pytest.raises(RunError, match=f"in use by process {pid_of_run()} on .*mirror release"):
            train(address)


def test_fetched_run_is_complete(proxy, address, tmp_path):
    run = train(tmp_path / "run", address)
    store = Store(address)
    (tmp_path / "here").mkdir()
    fetch_run(store, store.list(), tmp_path / "here", print)
    here = surestep.Run(tmp_path / "here")
    assert last_weights(here) == last_weights(run)
    assert all(each.verified for each in here.verify())
