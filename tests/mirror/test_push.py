"""A pass copies what the mirror lacks; what it leaves at any point is a correct mirror."""

import json
import os
import shutil
from types import SimpleNamespace

import pytest

import surestep
from surestep.base.errors import CheckpointError, RunError
from surestep.mirror import push as module
from surestep.mirror.link import MirrorLink, make_link, read_link
from surestep.mirror.push import Pusher
from surestep.mirror.store import Store
from surestep.record.checkpoint.manifest import verify
from tests.mirror.runs import files, flip_byte, names, train
from tests.record.checkpoint.forge import forge_record


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Return a run with three checkpoints."""
    return train(tmp_path_factory.mktemp("kept") / "run", **{"checkpoint.keep_last": 3}).path


@pytest.fixture
def run(tmp_path, kept):
    """Return a copy of it."""
    return shutil.copytree(kept, tmp_path / "run")


@pytest.fixture
def mirror(tmp_path):
    return tmp_path / "mirror"


def pusher(run, mirror, check=lambda: None):
    return Pusher(run, Store(str(mirror)), make_link(run, str(mirror)), check)


def test_mirror_has_every_file_of_the_run(run, mirror):
    (run / "incidents" / "step-00000001").mkdir(parents=True)
    (run / "incidents" / "step-00000001" / "incident.json").write_text("{}")
    first = pusher(run, mirror)
    first.push(is_last=True)
    assert files(mirror) == files(run)
    assert first.missing() == []
    second = pusher(run, mirror)
    second.push(is_last=True)
    assert (first.copied > 12, second.copied) == (True, 0)


def test_temporary_files_and_links_are_not_copied(run, mirror, tmp_path):
    (run / ".tmp-status.json-at-host-1").write_text("half")
    (run / "link").symlink_to(tmp_path)
    (run / "events-link").symlink_to(run / "events.jsonl")
    pusher(run, mirror).push(is_last=True)
    assert not {"link", "events-link"} & {path.name for path in mirror.iterdir()}
    assert not list(mirror.rglob(".tmp*"))


class Stopped(Exception):
    pass


def test_pass_that_stops_anywhere_leaves_complete_checkpoints_only(run, mirror):
    writes = 0
    while True:
        left = writes

        def check():
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped

        shutil.rmtree(mirror, ignore_errors=True)
        with_end = pusher(run, mirror, check)
        try:
            with_end.push(is_last=True)
        except Stopped:
            if (mirror / "config.json").exists():
                assert all((mirror / name).exists() for name in ("events.jsonl", "plan.json"))
            for name in names(mirror):
                path = mirror / "checkpoints" / name
                if (path / "manifest.json").exists():
                    saved = verify(path)
                    assert (mirror / "config.json").exists()
                    steps = [e for e in surestep.Run(mirror).events() if e["event"] == "steps"]
                    last = steps[-1]["first"] + len(steps[-1]["loss"]) - 1
                    assert last >= saved.step
        else:
            break
        pusher(run, mirror).push(is_last=True)  # the next process copies the rest
        assert files(mirror) == files(run)
        writes += 1
    assert writes == 31  # records, three checkpoints, and four files of each, three checked twice


def test_newest_checkpoint_is_copied_first(run, mirror):
    order = []
    made = pusher(run, mirror)
    upload = made._push_checkpoint
    made._push_checkpoint = lambda path: (order.append(path.name), upload(path))
    made.push()
    assert order == ["step-00000012", "step-00000009", "step-00000006"]


def test_deleted_checkpoint_is_deleted_only_after_newer_ones_are_there(run, mirror):
    made = pusher(run, mirror)
    made.push()
    for name in ("step-00000006", "step-00000009"):
        shutil.rmtree(run / "checkpoints" / name)
    shutil.copytree(run / "checkpoints" / "step-00000012", run / "checkpoints" / "step-00000015")
    seen = []
    push = made._push_checkpoint
    made._push_checkpoint = lambda path: (seen.append(names(mirror)), push(path))
    made.push()
    assert seen == [["step-00000006", "step-00000009", "step-00000012"]]
    assert names(mirror) == ["step-00000012", "step-00000015"]


def test_deletion_that_stops_anywhere_leaves_no_manifest_without_its_files(run, mirror):
    made = pusher(run, mirror)
    made.push()
    old = mirror / "checkpoints" / "step-00000006"
    shutil.rmtree(run / "checkpoints" / old.name)
    delete, seen = made._delete_file, []

    def note(name):
        delete(name)
        seen.append(sorted(path.name for path in old.iterdir()) if old.exists() else [])

    made._delete_file = note
    made.push()
    assert len(seen) > 1
    assert not any("manifest.json" in left for left in seen)


def test_nothing_is_deleted_while_a_checkpoint_here_is_not_complete(run, mirror):
    pusher(run, mirror).push()
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    (run / "checkpoints" / "step-00000012" / "manifest.json").unlink()
    pusher(run, mirror).push()
    assert names(mirror) == ["step-00000006", "step-00000009", "step-00000012"]


def test_complete_checkpoint_is_reported_when_it_is_copied_and_when_it_is_found(run, mirror):
    calls = []
    for found in (["step-00000012"], ["step-00000006", "step-00000009", "step-00000012"]):
        link, store = make_link(run, str(mirror)), Store(str(mirror))
        made = Pusher(run, store, link, on_complete=lambda: calls.append(names(mirror)))
        made.push()
        assert calls[0] == found
        calls.clear()


def test_abandoned_checkpoints_are_recorded_before_they_are_deleted(run, mirror, monkeypatch):
    made, seen, delete = pusher(run, mirror), [], module.delete_local
    made.push()
    paths = [run / "checkpoints" / name for name in ("step-00000012", "step-00000009")]

    def note(found):
        seen.append(sorted(read_link(run).abandoned))
        delete(found)

    monkeypatch.setattr(module, "delete_local", note)
    for path in paths:
        made.delete_abandoned([path])
    assert seen == [[paths[0].name], [paths[1].name, paths[0].name]]
    assert names(run) == ["step-00000006"]
    made.push()
    assert (names(mirror), read_link(run).abandoned) == (["step-00000006"], {})


def test_abandoned_checkpoint_that_is_still_here_is_not_forgotten(run, mirror, monkeypatch):
    """The process may be killed before it is deleted; the mirror then still has it."""
    made = pusher(run, mirror)
    made.push()
    monkeypatch.setattr(module, "delete_local", lambda paths: None)
    made.delete_abandoned([run / "checkpoints" / "step-00000012"])
    made.push()
    assert read_link(run).abandoned.keys() == {"step-00000012"}
    forge_record(run / "checkpoints" / "step-00000012", metadata={"saved": "again"})
    made.push()
    assert read_link(run).abandoned == {}


def test_mirror_is_listed_once_after_it_failed(run, mirror):
    made, listed = pusher(run, mirror), []
    made.push()
    made.store.list = lambda own=made.store.list: (listed.append(1), own())[1]
    made.push()
    assert listed == []
    made.look_again()
    made.push()
    made.push()
    assert listed == [1]


def test_what_is_written_while_the_rest_is_sent_is_counted(run, mirror, monkeypatch):
    monkeypatch.setattr(module, "COUNT_S", -1.0)
    made = pusher(run, mirror)
    first = made.count_sent()
    (run / "notes.bin").write_bytes(b"x" * 1000)
    assert (first.done, made.count_sent()) == (0, (0, first.total + 1000))
    made.push(is_last=True)
    assert made.count_sent() == (first.total + 1000, first.total + 1000)


def test_mirror_of_an_emptied_run_is_not_emptied(run, mirror):
    made = pusher(run, mirror)
    made.push()
    shutil.rmtree(run / "checkpoints")
    made.push(is_last=True)
    pusher(run, mirror).push(is_last=True)
    assert len(names(mirror)) == 3


def test_good_copy_of_a_checkpoint_that_is_damaged_here_is_kept(run, mirror):
    pusher(run, mirror).push()
    damaged = run / "checkpoints" / "damaged-step-00000012"
    (run / "checkpoints" / "step-00000012").rename(damaged)
    pusher(run, mirror).push()
    assert "step-00000012" in names(mirror)


def test_damaged_checkpoint_is_not_copied_and_the_others_are(run, mirror):
    flip_byte(run / "checkpoints" / "step-00000012" / "model.safetensors")
    made = pusher(run, mirror)
    with pytest.raises(CheckpointError, match=r"step-00000012 is damaged: model\.safetensors"):
        made.push()
    made.push()  # it is reported once
    for name in ("step-00000006", "step-00000009"):
        assert (mirror / "checkpoints" / name / "manifest.json").exists()
    assert not (mirror / "checkpoints" / "step-00000012" / "manifest.json").exists()


@pytest.mark.parametrize("is_new", [True, False], ids=["another process", "the same process"])
def test_checkpoint_that_was_replaced_is_copied_again(run, mirror, is_new):
    """The files of both have the same sizes."""
    made = pusher(run, mirror)
    made.push()
    path = run / "checkpoints" / "step-00000012"
    shutil.rmtree(path)
    other = train(run.parent / "other", seed=1, **{"checkpoint.keep_last": 3}).path
    shutil.copytree(other / "checkpoints" / "step-00000012", path)
    (pusher(run, mirror) if is_new else made).push(is_last=True)
    assert files(mirror) == files(run)
    assert surestep.Run(mirror).verify()[-1].verified


def test_checkpoint_that_is_deleted_during_its_upload_is_still_copied(run, mirror):
    made = pusher(run, mirror)
    upload = made.store.upload

    def delete_and_upload(name, path, hashes):
        shutil.rmtree(run / "checkpoints" / "step-00000012", ignore_errors=True)
        upload(name, path, hashes)
        assert "step-00000012" in {entry.name for entry in (mirror / "checkpoints").iterdir()}

    made.store.upload = delete_and_upload
    made._look()
    made._push_checkpoint(run / "checkpoints" / "step-00000012")
    assert verify(mirror / "checkpoints" / "step-00000012")
    assert not list(run.glob(".tmp*"))


def test_checkpoint_that_is_replaced_during_its_upload_is_copied_again(run, mirror, kept):
    other = train(run.parent / "other", seed=1, **{"checkpoint.keep_last": 3}).path
    made, path = pusher(run, mirror), run / "checkpoints" / "step-00000012"
    made.push()
    upload = made.store.upload

    def replace_by(source):
        shutil.rmtree(path)
        shutil.copytree(source / "checkpoints" / path.name, path)

    def replace_and_upload(*given):
        made.store.upload = upload
        replace_by(kept)
        upload(*given)

    replace_by(other)
    made.store.upload = replace_and_upload
    made._push_checkpoint(path)
    made.push()
    assert files(mirror / "checkpoints") == files(run / "checkpoints")


def test_without_hard_links_the_checkpoint_itself_is_read(run, mirror, monkeypatch):
    def no_links(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    pusher(run, mirror).push(is_last=True)
    assert files(mirror) == files(run)


def test_growing_records_are_copied_at_intervals_and_at_the_end(run, mirror, monkeypatch):
    monkeypatch.setattr(module, "RECORDS_S", 1000.0)
    made = pusher(run, mirror)
    made.push()
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "notice", "time": 1.0}\n')
    made.push()
    assert made.missing() == ["events.jsonl"]
    (run / "status.json").write_text(json.dumps({"status": "stopped"}))
    made.push()
    assert made.missing() == ["events.jsonl"]
    assert (mirror / "status.json").read_bytes() == (run / "status.json").read_bytes()
    made.push(is_last=True)
    assert made.missing() == []


def test_growing_records_are_copied_at_the_start_before_there_is_a_checkpoint(
    run, mirror, monkeypatch
):
    monkeypatch.setattr(module, "RECORDS_S", 1000.0)
    shutil.rmtree(run / "checkpoints")
    made = pusher(run, mirror)
    made.push()
    assert files(mirror) == files(run)
    for name in ("events.jsonl", "status.json"):
        with (run / name).open("a") as file:
            file.write("\n")
    made.push()
    assert made.missing() == ["events.jsonl"]


def test_small_records_do_not_postpone_the_growing_ones(run, mirror, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module, "RECORDS_S", 30.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    made = pusher(run, mirror)
    made.push()
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "notice", "time": 1.0}\n')
    for number in range(3):
        now[0] += 9.5
        (run / "status.json").write_text(json.dumps({"status": "running", "step": number}))
        made.push()
        made.push()
        assert made.missing() == ["events.jsonl"]
    now[0] += 2.0
    made.push()
    assert made.missing() == []


def test_large_record_is_copied_while_it_grows(run, mirror, monkeypatch):
    monkeypatch.setattr(module, "_IN_MEMORY", 100)
    made = pusher(run, mirror)
    upload = made.store.upload

    def grow_and_upload(name, path, hashes):
        with (run / "events.jsonl").open("a") as file:
            file.write('{"event": "notice", "time": 1.0}\n')
        upload(name, path, hashes)

    made.store.upload = grow_and_upload
    made.push()
    copied = (mirror / "events.jsonl").read_bytes()
    assert (run / "events.jsonl").read_bytes().startswith(copied)
    assert made.missing() == ["events.jsonl"]


def test_damaged_copy_is_replaced_when_the_run_has_the_checkpoint_again(run, mirror):
    made = pusher(run, mirror)
    made.push()
    flip_byte(mirror / "checkpoints" / "step-00000012" / "model.safetensors")
    link = make_link(run, str(mirror))
    again = Pusher(run, Store(str(mirror)), module.replace(link, damaged=("step-00000012",)))
    again.push()
    assert files(mirror) == files(run)
    assert read_link(run).damaged == ()


def test_mirror_that_was_deleted_meanwhile_is_copied_again(run, mirror):
    made = pusher(run, mirror)
    made.push()
    shutil.rmtree(mirror)
    shutil.copytree(run / "checkpoints" / "step-00000012", run / "checkpoints" / "step-00000015")
    made.push()
    assert (mirror / "config.json").exists()
    shutil.rmtree(mirror)
    made.push(is_last=True)
    assert files(mirror) == files(run)


def test_deleted_mirror_is_noticed_without_a_new_checkpoint(run, mirror, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    made = pusher(run, mirror)
    made.push()
    shutil.rmtree(mirror)
    made.push()
    assert files(mirror) == files(run)


def test_mirror_that_failed_is_looked_at_again(run, mirror):
    made = pusher(run, mirror)
    made.push()
    shutil.rmtree(mirror)
    made.push()
    assert not mirror.exists()
    made.look_again()
    made.push()
    assert files(mirror) == files(run)


def test_link_that_a_full_disk_rejects_is_written_by_the_next_pass(run, mirror, monkeypatch):
    pusher(run, mirror).push()
    link = make_link(run, str(mirror))
    made = Pusher(run, Store(str(mirror)), module.replace(link, damaged=("step-00000012",)))
    made.link.write(run)

    def fail(*_):
        raise RunError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(MirrorLink, "write", fail)
        made.push()
    assert read_link(run).damaged == ("step-00000012",)
    made.push()
    assert read_link(run).damaged == ()


def test_link_without_the_abandoned_checkpoints_can_be_read(run, mirror):
    link = make_link(run, str(mirror))
    link.write(run)
    known = json.loads((run / "mirror.json").read_text())
    del known["abandoned"]
    (run / "mirror.json").write_text(json.dumps(known))
    assert read_link(run) == link


@pytest.mark.parametrize("name", ["step-00000012", "step-00000009"])
def test_file_that_a_mirror_lost_is_copied_again(run, mirror, name):
    pusher(run, mirror).push(is_last=True)
    (mirror / "checkpoints" / name / "optimizer.safetensors").unlink()
    (mirror / "checkpoints" / name / "state.json").write_text("{}")
    pusher(run, mirror).push(is_last=True)
    assert files(mirror) == files(run)


def test_newer_checkpoint_of_the_mirror_is_not_deleted(run, mirror):
    pusher(run, mirror).push()
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    shutil.rmtree(run / "checkpoints" / "step-00000006")
    pusher(run, mirror).push(is_last=True)
    assert names(mirror) == ["step-00000009", "step-00000012"]


def test_rollback_deletes_the_newer_checkpoints_of_the_mirror(run, mirror):
    made = pusher(run, mirror)
    made.push()
    shutil.rmtree(run / "checkpoints" / "step-00000012")
    made.push()
    assert names(mirror) == ["step-00000006", "step-00000009"]


def test_other_folders_among_the_checkpoints_are_not_deleted(run, mirror):
    (mirror / "checkpoints" / "notes").mkdir(parents=True)
    (mirror / "checkpoints" / "notes" / "a.txt").write_text("of the user")
    pusher(run, mirror).push(is_last=True)
    assert (mirror / "checkpoints" / "notes" / "a.txt").exists()


@pytest.mark.parametrize("has_links", [True, False])
def test_checkpoint_that_lost_a_file_here_is_damaged_and_the_others_are_copied(
    run, mirror, monkeypatch, has_links
):
    if not has_links:
        monkeypatch.setattr(module, "_link_files", lambda *_: False)
    (run / "checkpoints" / "step-00000012" / "optimizer.safetensors").unlink()
    attempts = 0

    def check():
        nonlocal attempts
        attempts += 1
        if attempts > 100:
            raise Stopped

    made = pusher(run, mirror, check)
    with pytest.raises(CheckpointError, match=r"step-00000012 is damaged: optimizer\.safetensors"):
        made.push()
    assert {"step-00000006", "step-00000009"} <= set(names(mirror))
    made.push()  # it is reported once


def test_pass_can_be_stopped_between_two_checkpoints(run, mirror, monkeypatch):
    def vanish(*_):
        raise module.CheckpointVanishedError("It was deleted.")

    attempts = 0

    def check():
        nonlocal attempts
        attempts += 1
        if attempts > 100:
            raise Stopped

    made = pusher(run, mirror, check)
    monkeypatch.setattr(made, "_push_checkpoint", vanish)
    with pytest.raises(Stopped):
        made.push()


class Full:
    """Lets a store have a number of checkpoints, like a disk of limited size."""

    def __init__(self, store, mirror, count):
        self.upload, self.mirror, self.count = store.upload, mirror, count
        store.upload = self

    def __call__(self, name, *more):
        known = set(names(self.mirror)) | {name.split("/")[1]}
        if len(known) > self.count:
            raise OSError(28, "No space left on device")
        self.upload(name, *more)


def test_full_mirror_loses_deleted_checkpoints_but_the_newest(run, mirror):
    made = pusher(run, mirror)
    made.push()
    folder = run / "checkpoints"
    for name in ("step-00000006", "step-00000009"):
        shutil.rmtree(folder / name)
    shutil.copytree(folder / "step-00000012", folder / "step-00000015")
    shutil.rmtree(folder / "step-00000012")
    Full(made.store, mirror, 2)
    before = []
    check, made._check = made._check, lambda: (before.append(names(mirror)), check())
    made.push()
    assert names(mirror) == ["step-00000015"]
    assert all("step-00000012" in found or "step-00000015" in found for found in before)


def test_full_mirror_without_deleted_checkpoints_stays_as_it_is(run, mirror):
    made = pusher(run, mirror)
    made.push()
    shutil.copytree(run / "checkpoints" / "step-00000012", run / "checkpoints" / "step-00000015")
    Full(made.store, mirror, 3)
    with pytest.raises(OSError, match="No space left"):
        made.push()
    assert names(mirror) == ["step-00000006", "step-00000009", "step-00000012"]


def test_every_byte_of_the_mirror_is_compared_if_wanted(run, mirror):
    pusher(run, mirror).push(is_last=True)
    path = mirror / "checkpoints" / "step-00000009" / "model.safetensors"
    flip_byte(path)
    again = Pusher(run, Store(str(mirror)), make_link(run, str(mirror)), every_byte=True)
    again.push(is_last=True)
    assert files(mirror) == files(run)
    assert again.copied == 2  # the file, and the manifest, which was deleted before
