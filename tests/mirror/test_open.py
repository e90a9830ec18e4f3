"""A mirror that cannot be right is rejected before the run starts."""

import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

import surestep
from surestep.base.errors import ConfigError, RunError
from surestep.base.paths import cache_folder
from surestep.cli.main import main
from surestep.mirror.link import read_link
from surestep.mirror.open import explain
from surestep.mirror.owner import FILE, read_owner
from surestep.mirror.push import Pusher
from surestep.mirror.store import Store
from surestep.record.io import dumps
from tests.mirror.runs import StopAt, files, flip_byte, last_weights, names, train


@pytest.mark.parametrize("place", ["run", "run/mirror", "."])
def test_mirror_in_the_run_folder_or_around_it_is_rejected(tmp_path, place):
    with pytest.raises(ConfigError, match=r"are not apart.*another disk"):
        train(tmp_path / "run", tmp_path / place)
    assert not (tmp_path / "run").exists()


def test_mirror_of_another_run_is_rejected(tmp_path):
    train(tmp_path / "one", tmp_path / "mirror")
    with pytest.raises(RunError, match=r"has another run already.*--run /"):
        train(tmp_path / "two", tmp_path / "mirror")
    assert surestep.Run(tmp_path / "mirror").last.step == 12
    assert not (tmp_path / "two" / "config.json").exists()


LOST = {"in the mirror": ("mirror",), "in the run": ("run",), "in both": ("mirror", "run")}


@pytest.mark.parametrize("is_pushed", [False, True])
@pytest.mark.parametrize("where", LOST)
def test_run_continues_with_its_mirror_if_the_file_that_has_its_id_is_lost(
    tmp_path, where, is_pushed
):
    """As `mirror.json is damaged. Delete this file` says."""
    run = train(tmp_path / "run", tmp_path / "mirror", max_steps=6).path
    for name in LOST[where]:
        (tmp_path / name / FILE).unlink()
    if is_pushed:
        assert main(["mirror", "push", str(run), "--to", str(tmp_path / "mirror")]) == 0
    else:
        train(run, tmp_path / "mirror", allow=("max_steps",))
    assert files(tmp_path / "mirror") == files(run)
    assert read_link(run).id == read_owner(Store(str(tmp_path / "mirror")))["id"]


def test_checkpoints_that_only_the_mirror_has_are_kept_if_the_run_lost_its_file(tmp_path):
    run = train(tmp_path / "run", tmp_path / "mirror", max_steps=6).path
    (run / FILE).unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000003")
    train(run, tmp_path / "mirror", allow=("max_steps",))
    assert "step-00000003" in names(tmp_path / "mirror")


@pytest.mark.parametrize("lost", ["mirror.json", "mirror.json events.jsonl"])
def test_mirror_of_another_run_is_rejected_without_its_id(tmp_path, lost):
    train(tmp_path / "one", tmp_path / "mirror")
    for name in lost.split():
        (tmp_path / "mirror" / name).unlink()
    before = files(tmp_path / "mirror")
    train(tmp_path / "two", seed=1, max_steps=9)
    with pytest.raises(RunError, match="has another run already"):
        train(tmp_path / "two", tmp_path / "mirror", seed=1, allow=("max_steps",))
    assert files(tmp_path / "mirror") == before


def test_mirror_with_newer_steps_than_the_run_is_rejected(tmp_path):
    run = train(tmp_path / "run", tmp_path / "mirror").path
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    with pytest.raises(RunError, match=r"has step 12 of this run, and .* has step 9"):
        train(run, tmp_path / "mirror")
    assert names(tmp_path / "mirror")[-1] == "step-00000012"


@pytest.mark.parametrize("is_replaced", [False, True])
def test_checkpoint_that_a_rollback_deleted_is_newer_only_if_another_machine_replaced_it(
    tmp_path, is_replaced
):
    run = train(tmp_path / "run", tmp_path / "mirror").path
    last = Path("checkpoints") / "step-00000012"
    pusher = Pusher(run, Store(str(tmp_path / "mirror")), read_link(run))
    pusher.delete_abandoned([run / last])
    if is_replaced:
        other = train(tmp_path / "other", seed=1).path
        shutil.rmtree(tmp_path / "mirror" / last)
        shutil.copytree(other / last, tmp_path / "mirror" / last)
        with pytest.raises(RunError, match=r"has step 12 of this run, and .* has step 9"):
            train(run, tmp_path / "mirror")
    else:
        train(run, tmp_path / "mirror")
        assert files(tmp_path / "mirror") == files(run)


@pytest.mark.parametrize("as_source", [True, False])
def test_mirror_that_lost_its_config_is_not_taken_for_empty(tmp_path, monkeypatch, as_source):
    run = train(tmp_path / "run", tmp_path / "mirror").path
    (tmp_path / "mirror" / "config.json").unlink()
    (tmp_path / "mirror" / FILE).unlink()
    before = names(tmp_path / "mirror")
    shutil.rmtree(run)
    monkeypatch.chdir(tmp_path)
    address = f"file://{tmp_path}/mirror"
    with pytest.raises(RunError, match=r"has checkpoints but no config\.json|has another run"):
        train(address) if as_source else train(run, tmp_path / "mirror")
    assert names(tmp_path / "mirror") == before


def test_run_restores_the_config_of_its_own_mirror(tmp_path):
    run = train(tmp_path / "run", tmp_path / "mirror").path
    (tmp_path / "mirror" / "config.json").unlink()
    train(run, tmp_path / "mirror")
    assert surestep.Run(tmp_path / "mirror").last.step == 12


def test_mirror_that_another_machine_writes_is_rejected(tmp_path, monkeypatch):
    mirror = Store(str(tmp_path / "mirror"))
    reads = []
    read = Store.read

    def renewed(store, name):
        reads.append(name)
        writer = {"host": "other", "pid": 7, "token": "t", "time": time.time() + len(reads)}
        return dumps({"format": 1, "id": "a", "writer": writer}).encode()

    mirror.write(FILE, b"{}")
    monkeypatch.setattr(Store, "read", lambda s, n: renewed(s, n) if n == FILE else read(s, n))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="in use by process 7 on other"):
        train(f"file://{tmp_path}/mirror")


def test_mirror_is_free_again_after_an_error_at_the_start(tmp_path):
    for _ in range(2):
        with pytest.raises(ConfigError, match="profile"):
            train(tmp_path / "run", tmp_path / "mirror", profile="8:99")
        train(tmp_path / "run", tmp_path / "mirror")
        with pytest.raises(RunError, match="different config"):
            train(tmp_path / "run", tmp_path / "mirror", **{"optim.lr": 0.5, "max_steps": 20})
        shutil.rmtree(tmp_path / "run")
        shutil.rmtree(tmp_path / "mirror")


def test_run_at_an_address_is_resumed_on_an_empty_machine(tmp_path, monkeypatch):
    address = f"file://{tmp_path}/mirror"
    whole = train(tmp_path / "whole")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(surestep.base.errors.Preempted):
        train(address, callbacks=[StopAt(7)])
    (folder,) = Path("runs").iterdir()
    shutil.rmtree("runs")
    run = train(address, seed=5)  # other initial weights
    assert run.path == folder
    assert last_weights(run) == last_weights(whole)
    assert names(tmp_path / "mirror") == names(folder)
    events = list(run.events())
    assert [event["step"] for event in events if event["event"] == "resume"] == [7]
    assert run.config["config"]["checkpoint.mirror"] == address
    again = train(address)
    assert again.last.step == 12


def test_damaged_newest_checkpoint_is_replaced_by_an_older_one(tmp_path, monkeypatch, capfd):
    address = f"file://{tmp_path}/mirror"
    monkeypatch.chdir(tmp_path)
    whole = last_weights(train(address))
    shutil.rmtree("runs")
    damaged = tmp_path / "mirror" / "checkpoints" / "step-00000012" / "model.safetensors"
    flip_byte(damaged)
    run = train(address)
    assert "step-00000012 is damaged: model.safetensors" in capfd.readouterr().err
    assert last_weights(run) == whole
    assert all(each.verified for each in surestep.Run(tmp_path / "mirror").verify())


def test_addresses_have_different_cache_folders():
    found = [cache_folder(f"s3://b/{name}") for name in ("x-y", "x/y", "x y", "実", "試")]
    assert len(set(found)) == 5
    assert all(re.fullmatch(r"runs/s3-b(-x-y)?-[0-9a-f]{8}", str(path)) for path in found)
    assert cache_folder("s3://b/x-y") == found[0]


def test_cache_folder_of_another_mirror_is_rejected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    address = f"file://{tmp_path}/mirror"
    here = train(address).path
    other = f"file://{tmp_path}/other"
    replace(read_link(here), address=other).write(here)
    with pytest.raises(RunError, match=rf"{here} is the folder of {other}, not of {address}"):
        train(address)


def test_address_as_a_path_is_an_address_and_without_slashes_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(Path(f"file://{tmp_path}/mirror"), max_steps=3).path.parent == Path("runs")
    with pytest.raises(ConfigError, match=r"two slashes after the colon.*: s3://bucket/run\."):
        train("s3:bucket/run")
    assert not Path("s3:bucket").exists()


def test_address_and_another_mirror_are_rejected_together(tmp_path):
    with pytest.raises(ConfigError, match="a run has one mirror"):
        train(f"file://{tmp_path}/a", tmp_path / "b")


def test_mirror_that_does_not_answer_cannot_be_the_source(tmp_path, monkeypatch):
    def fail(*_):
        raise ConnectionError("the server is away")

    monkeypatch.setattr(Store, "read", fail)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"cannot be reached: the server is away.*--run runs/file-"):
        train(f"file://{tmp_path}/mirror")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("s3://user:secret@bucket/run", "must not have a password"),
        ("s3://bucket/run?key=secret", "must not have a password"),
        ("simplecache::s3://bucket/run", "must be a single address"),
        ("runs/mirror", "a full path such as .*/runs/mirror"),
        ("s3://", "must name a folder"),
    ],
)
def test_invalid_address_is_rejected_without_its_password(tmp_path, address, text):
    with pytest.raises(ConfigError, match=text) as found:
        train(tmp_path / "run", address)
    assert "user:secret" not in str(found.value)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError("Access Denied"), "rejects this process: Access Denied. Check the"),
        (FileNotFoundError("The specified bucket does not exist"), "There is no bucket or disk"),
        (type("NoCredentialsError", (Exception,), {})("Unable"), "There are no credentials for"),
        (OSError(28, "No space left on device"), "cannot be written: [Errno 28] No space left on "),
        (OSError(28, "No space left on device"), "Free some space, or choose another mirror."),
        (OSError(30, "Read-only file system"), "Choose a mirror that can be written."),
        (PermissionError(13, "Permission denied"), "denied. Change the permissions, or choose an"),
        (NotADirectoryError(20, "Not a directory"), "Choose another mirror."),
        (ConnectionError("away"), None),
        (TimeoutError(), None),
    ],
)
def test_errors_that_will_not_pass_are_told_from_outages(error, text):
    found = explain("s3://bucket/run", error)
    assert (found is None) == (text is None)
    assert text is None or text in str(found)
