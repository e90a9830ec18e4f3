"""A run that is fetched is the run that was copied; what is damaged is named and left out."""

import json
import shutil
from dataclasses import replace

import pytest

import surestep
from surestep.base.errors import CheckpointError, RunError
from surestep.mirror.fetch import fetch_run
from surestep.mirror.link import MirrorLink, make_link, read_link
from surestep.mirror.open import become_writer
from surestep.mirror.outline import complete_checkpoints, examine_mirror, open_outline
from surestep.mirror.owner import Owner, read_owner
from surestep.mirror.store import Store
from surestep.record.checkpoint.discovery import list_checkpoints
from tests.mirror.runs import files, flip_byte, last_weights, names, train
from tests.record.checkpoint.forge import forge_record


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept") / "folder"


@pytest.fixture
def mirror(tmp_path, kept):
    """The mirror of a finished run with three checkpoints, which the first test trains."""
    if kept.exists():
        shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    else:
        train(tmp_path / "run", tmp_path / "mirror", **{"checkpoint.keep_last": 3})
        shutil.copytree(tmp_path, kept)
    return tmp_path / "mirror"


def fetch(mirror, folder, **options):
    lines = []
    store = Store(str(mirror))
    folder.mkdir(parents=True, exist_ok=True)
    fetch_run(store, store.list(), folder, lines.append, **options)
    return lines


def begin(mirror, folder):
    """Leave what an interrupted fetch leaves first."""
    folder.mkdir()
    MirrorLink(read_owner(Store(str(mirror)))["id"], str(mirror), fetching=True).write(folder)


@pytest.mark.parametrize("name", ["events.jsonl", "notes/mine.txt"])
def test_files_that_are_not_of_a_run_are_not_replaced(mirror, tmp_path, name):
    here = tmp_path / "here"
    (here / name).parent.mkdir(parents=True)
    (here / name).write_text("of the user")
    (here / ".hidden").touch()
    with pytest.raises(RunError, match=r"here has files that are not of this run, such as "):
        fetch(mirror, here)
    assert files(here) == {name: b"of the user", ".hidden": b""}
    shutil.rmtree(here / name.split("/")[0], ignore_errors=True)
    (here / name).unlink(missing_ok=True)
    fetch(mirror, here)


def test_fetched_run_is_the_run(mirror, tmp_path):
    fetch(mirror, tmp_path / "here")
    run, here = surestep.Run(tmp_path / "run"), surestep.Run(tmp_path / "here")
    assert all(each.verified for each in here.verify())
    assert last_weights(run) == last_weights(here)
    assert (here.config, here.status) == (run.config, run.status)
    assert list(here.events()) == list(run.events())
    assert read_link(here.path).id == read_link(run.path).id


def test_complete_checkpoints_of_a_mirror_are_listed_by_step():
    found = ["step-00000010", "step-99999999", "step-100000000"]
    listed = {f"checkpoints/{name}/manifest.json": 1 for name in (*reversed(found), "other")}
    assert complete_checkpoints({**listed, "checkpoints/step-00000011/state.json": 1}) == found


def test_link_to_a_mirror_keeps_what_is_known_of_the_run(tmp_path):
    known = MirrorLink("mine", "/a", elsewhere=("step-00000003",), fetching=True)
    known.write(tmp_path)
    assert make_link(tmp_path, "/a") == known
    assert make_link(tmp_path, "/a", "other") == replace(known, id="other")
    assert make_link(tmp_path, "/b") == MirrorLink("mine", "/b", fetching=True)
    assert make_link(tmp_path, "/b", "other") == MirrorLink("other", "/b", fetching=True)


def test_run_that_is_here_is_not_fetched_again(mirror, tmp_path, monkeypatch):
    fetch(mirror, tmp_path / "here")
    (tmp_path / "here" / "events.jsonl").write_text("newer")
    assert fetch(mirror, tmp_path / "here") == []
    assert (tmp_path / "here" / "events.jsonl").read_text() == "newer"


def test_older_run_gets_the_newer_checkpoints(mirror, tmp_path):
    fetch(mirror, tmp_path / "here")
    shutil.rmtree(tmp_path / "here" / "checkpoints" / "step-00000012")
    (tmp_path / "here" / "events.jsonl").write_text("")
    assert len(fetch(mirror, tmp_path / "here")) == 1
    assert names(tmp_path / "here")[-1] == "step-00000012"
    assert (tmp_path / "here" / "events.jsonl").read_text()


def test_another_run_in_the_folder_is_not_replaced(mirror, tmp_path):
    other = train(tmp_path / "other").path
    with pytest.raises(RunError, match=r"other has another run than .*mirror fetch"):
        fetch(mirror, other)


def test_damaged_checkpoint_is_named_and_left_out(mirror, tmp_path):
    flip_byte(mirror / "checkpoints" / "step-00000012" / "model.safetensors")
    lines = fetch(mirror, tmp_path / "here")
    assert f"{mirror}/checkpoints/step-00000012 is damaged: model.safetensors" in lines[1]
    assert "step-00000012" not in names(tmp_path / "here")
    assert read_link(tmp_path / "here").damaged == ("step-00000012",)
    assert surestep.Run(tmp_path / "here").last.step == 9
    assert not list((tmp_path / "here").rglob(".tmp*"))
    assert fetch(mirror, tmp_path / "here") == []
    store = Store(str(mirror))
    with open_outline(store, store.list()) as folder:
        paths = list_checkpoints(folder / "checkpoints")
        found = list(examine_mirror(store, paths, every_byte=True))
    assert [each.verified for each in found] == [True, True, False]
    assert found[2].problems == ("model.safetensors: it has other bytes than were written",)


def test_checkpoint_here_that_the_run_left_is_replaced(mirror, tmp_path):
    """It is undamaged, but the newer steps of the mirror do not follow from it."""
    fetch(mirror, tmp_path / "here")
    shutil.rmtree(tmp_path / "here" / "checkpoints" / "step-00000012")
    forge_record(tmp_path / "here" / "checkpoints" / "step-00000009", metadata={"of": "another"})
    fetch(mirror, tmp_path / "here")
    assert files(tmp_path / "here") == files(mirror)


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_run_without_a_good_checkpoint_is_not_fetched(mirror, tmp_path, file):
    for name in names(mirror):
        flip_byte(mirror / "checkpoints" / name / file)
    with pytest.raises(CheckpointError, match=r"Every checkpoint of .* is damaged\. surestep ckpt"):
        fetch(mirror, tmp_path / "here")
    assert not (tmp_path / "here" / "config.json").exists()


def test_checkpoint_that_was_not_copied_to_its_end_does_not_exist(mirror, tmp_path):
    (mirror / "checkpoints" / "step-00000012" / "manifest.json").unlink()
    fetch(mirror, tmp_path / "here")
    assert surestep.Run(tmp_path / "here").last.step == 9
    assert read_link(tmp_path / "here").damaged == ()


def test_milestones_stay_in_the_mirror(tmp_path):
    options = {"checkpoint.keep_every": "3 steps", "checkpoint.keep_last": 1}
    options |= {"checkpoint.keep_best": 0}
    train(tmp_path / "run", tmp_path / "mirror", **options)
    lines = fetch(tmp_path / "mirror", tmp_path / "here")
    assert "1 checkpoint from" in lines[0]
    assert names(tmp_path / "here") == ["step-00000012"]
    elsewhere = read_link(tmp_path / "here").elsewhere
    assert elsewhere == ("step-00000003", "step-00000006", "step-00000009")
    longer = {**options, "max_steps": 15, "schedule.name": "constant"}
    train(tmp_path / "here", tmp_path / "mirror", **longer)
    assert {*elsewhere, "step-00000015"} <= set(names(tmp_path / "mirror"))
    fetch(tmp_path / "mirror", tmp_path / "all", every=True)
    assert names(tmp_path / "all") == names(tmp_path / "mirror")


def test_interrupted_fetch_leaves_no_run_and_continues(mirror, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("surestep.mirror.fetch._fetch_records", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch(mirror, tmp_path / "here")
    assert not (tmp_path / "here" / "config.json").exists()
    monkeypatch.undo()
    read, chunks = [], Store.chunks

    def count(self, name, size=None):
        read.append(name)
        return chunks(self, name, size)

    monkeypatch.setattr(Store, "chunks", count)
    fetch(mirror, tmp_path / "here")
    assert not [name for name in read if name.endswith(".safetensors")]
    assert surestep.Run(tmp_path / "here").last.step == 12


@pytest.mark.parametrize("part", ["step-00000009/model.safetensors", "events.jsonl"])
def test_interrupted_fetch_into_a_run_is_completed(mirror, tmp_path, monkeypatch, part):
    here = tmp_path / "here"
    fetch(mirror, here)
    for step in (9, 12):
        shutil.rmtree(here / "checkpoints" / f"step-{step:08}")
    (here / "events.jsonl").write_text("")
    chunks = Store.chunks

    def stop(self, name, size=None):
        if name.endswith(part):
            raise ConnectionResetError(104, "reset")
        return chunks(self, name, size)

    monkeypatch.setattr(Store, "chunks", stop)
    with pytest.raises((ConnectionResetError, RunError)):
        fetch(mirror, here)
    monkeypatch.undo()
    store, link = Store(str(mirror)), read_link(here)
    with pytest.raises(RunError, match=r"not fetched completely|has step 12 of this run"):
        become_writer(store, Owner(store, link.id), here, print)
    fetch(mirror, here)
    assert names(here) == names(mirror)
    assert (here / "events.jsonl").read_bytes() == (mirror / "events.jsonl").read_bytes()
    assert fetch(mirror, here) == []
    become_writer(store, owner := Owner(store, link.id), here, print)
    owner.release()


def test_folder_with_newer_steps_than_the_mirror_is_not_changed(mirror, tmp_path):
    here = tmp_path / "here"
    fetch(mirror, here)
    shutil.rmtree(mirror / "checkpoints" / "step-00000012")
    shutil.rmtree(here / "checkpoints" / "step-00000006")
    with pytest.raises(
        RunError, match=r"here has step 12 of this run, and .* has step 9\. .*FOLDER"
    ):
        fetch(mirror, here, every=True)
    assert names(here) == ["step-00000009", "step-00000012"]


def test_fetch_of_every_checkpoint_keeps_newer_records_and_local_checkpoints(mirror, tmp_path):
    here, name = tmp_path / "here", "step-00000009"
    fetch(mirror, here)
    shutil.rmtree(here / "checkpoints" / "step-00000006")
    shutil.rmtree(here / "checkpoints" / name)
    other = train(tmp_path / "other", seed=1, **{"checkpoint.keep_last": 3}).path
    shutil.copytree(other / "checkpoints" / name, here / "checkpoints" / name)
    (here / "events.jsonl").write_text("newer")
    lines = fetch(mirror, here, every=True)
    assert (
        f"{here}/checkpoints/{name} differs from that of {mirror}, and is not replaced" in lines[1]
    )
    assert names(here) == names(mirror)
    manifests = [path / "checkpoints" / name / "manifest.json" for path in (here, other)]
    assert manifests[0].read_bytes() == manifests[1].read_bytes()
    assert (here / "events.jsonl").read_text() == "newer"


def test_fetch_of_every_checkpoint_replaces_those_that_are_damaged_here(mirror, tmp_path):
    here = tmp_path / "here"
    fetch(mirror, here, every=True)
    flip_byte(here / "checkpoints" / "step-00000009" / "model.safetensors")
    (here / "checkpoints" / "step-00000006" / "optimizer.safetensors").unlink()
    fetch(mirror, here, every=True)
    assert all(each.verified for each in surestep.Run(here).verify())


@pytest.mark.parametrize("size", [None, 0, 2**20], ids=["missing", "empty", "larger"])
def test_checkpoint_with_a_file_of_another_size_is_not_downloaded(
    mirror, tmp_path, monkeypatch, size
):
    path = mirror / "checkpoints" / "step-00000012" / "model.safetensors"
    path.unlink() if size is None else path.write_bytes(bytes(size))
    chunks, read = Store.chunks, []

    def note(self, name, size=None):
        read.append(name)
        return chunks(self, name, size)

    monkeypatch.setattr(Store, "chunks", note)
    lines = fetch(mirror, tmp_path / "here")
    assert "step-00000012 is damaged: model.safetensors" in lines[1]
    assert surestep.Run(tmp_path / "here").last.step == 9
    assert path.relative_to(mirror).as_posix() not in read


def test_file_that_is_deleted_while_it_is_fetched_makes_its_checkpoint_damaged(
    mirror, tmp_path, monkeypatch
):
    chunks = Store.chunks

    def vanish(self, name, size=None):
        if name.endswith("step-00000012/model.safetensors"):
            (mirror / name).unlink(missing_ok=True)
        return chunks(self, name, size)

    monkeypatch.setattr(Store, "chunks", vanish)
    lines = fetch(mirror, tmp_path / "here")
    assert "An older checkpoint is used instead" in lines[1]
    assert surestep.Run(tmp_path / "here").last.step == 9


@pytest.mark.parametrize("part", ["model.safetensors", "events.jsonl"])
def test_network_error_is_not_blamed_on_the_local_disk(mirror, tmp_path, monkeypatch, part):
    chunks = Store.chunks

    def stop(self, name, size=None):
        if name.endswith(part):
            raise ConnectionResetError(104, "reset")
        return chunks(self, name, size)

    monkeypatch.setattr(Store, "chunks", stop)
    with pytest.raises(ConnectionResetError):
        fetch(mirror, tmp_path / "here")


def test_full_local_disk_is_named(mirror, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("surestep.mirror.fetch.fsync", fail)
    with pytest.raises(RunError, match=r"here/checkpoints/step-00000012 could not be written: No"):
        fetch(mirror, tmp_path / "here")


def test_run_that_was_copied_by_other_tools_can_be_fetched(tmp_path):
    run = train(tmp_path / "run")
    shutil.copytree(run.path, tmp_path / "copy")
    fetch(tmp_path / "copy", tmp_path / "here")
    assert last_weights(surestep.Run(tmp_path / "here")) == last_weights(run)


def test_owner_of_another_format_is_rejected(mirror, tmp_path):
    found = json.loads((mirror / "mirror.json").read_text())
    (mirror / "mirror.json").write_text(json.dumps({**found, "format": 99}))
    with pytest.raises(RunError, match="Install a newer one"):
        fetch(mirror, tmp_path / "here")


@pytest.mark.parametrize(
    "name",
    [
        *("../out", "a/../../out", "/tmp/out", "checkpoints/x/../../../out", "a\\..\\out", "a\0"),
        *("lock", "LOCK", "Mirror.json", ".git/config", "checkpoints/step-00000012/notes.txt"),
        *("Checkpoints/step-00000099/manifest.json", "checkpoints/notes.txt"),
    ],
)
def test_file_that_is_not_of_a_run_is_not_fetched(mirror, tmp_path, monkeypatch, name):
    fetch(mirror, tmp_path / "expected")
    find, chunks = Store._find, Store.chunks
    monkeypatch.setattr(Store, "_find", lambda self: {**find(self), name: 4})

    def answer(self, asked, size=None):
        return iter([b"evil"]) if asked == name else chunks(self, asked, size)

    monkeypatch.setattr(Store, "chunks", answer)
    fetch(mirror, tmp_path / "folder" / "here")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["here"]
    assert files(tmp_path / "folder" / "here") == files(tmp_path / "expected")


def test_file_of_a_callback_is_fetched(tmp_path):
    run = train(tmp_path / "run").path
    (run / "notes").mkdir()
    (run / "notes" / "of the user.txt").write_text("text")
    train(run, tmp_path / "mirror")
    fetch(tmp_path / "mirror", tmp_path / "here")
    assert (tmp_path / "here" / "notes" / "of the user.txt").read_text() == "text"


def test_record_is_not_written_through_a_link_in_the_run_folder(mirror, tmp_path):
    (mirror / "incidents").mkdir()
    (mirror / "incidents" / "incident.json").write_text("{}")
    here, out = tmp_path / "here", tmp_path / "out"
    out.mkdir()
    begin(mirror, here)
    (here / "incidents").symlink_to(out)
    with pytest.raises(RunError, match=r"here/incidents is a link, .*Remove it, and try again"):
        fetch(mirror, here)
    assert list(out.iterdir()) == []
    (here / "incidents").unlink()
    fetch(mirror, here)
    assert (here / "incidents" / "incident.json").exists()


def test_link_in_the_way_of_a_record_is_replaced(mirror, tmp_path):
    here = tmp_path / "here"
    begin(mirror, here)
    (tmp_path / "out").write_text("of the user")
    for name in ("events.jsonl", "config.json"):
        (here / name).symlink_to(tmp_path / "absent")
    (here / "status.json").symlink_to(tmp_path / "out")
    fetch(mirror, here)
    assert (tmp_path / "out").read_text() == "of the user"
    assert not (tmp_path / "absent").exists()
    assert not [path for path in here.rglob("*") if path.is_symlink()]
    assert files(here) == files(mirror)
