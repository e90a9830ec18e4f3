import os
import shutil
from pathlib import Path

import pytest

from surestep.base.errors import CheckpointError, CorruptCheckpointError
from surestep.engine.value import Metrics
from surestep.record.checkpoint import discovery as good
from surestep.record.checkpoint.discovery import (
    CheckpointScan,
    CorruptCheckpoint,
    checkpoint_name,
    find_newest_valid,
    list_checkpoints,
    quarantine,
    scan_checkpoints,
)
from surestep.record.checkpoint.manifest import FORMAT, CheckpointVanishedError
from surestep.record.checkpoint.reader import CheckpointInfo
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint
from tests.record.checkpoint.test_manifest import rewritten


@pytest.fixture
def folder(tmp_path):
    state = tiny.state_of(steps=1)
    for step in (1, 2, 3):
        state.progress = state.progress._replace(step=step)
        save_checkpoint(tmp_path, state)
    return tmp_path


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 4
    file.write_bytes(data)


def test_newest_good_checkpoint_is_found_and_damaged_ones_are_named(folder):
    flip(folder / "step-00000003" / "model.safetensors")
    (folder / "step-00000002" / "manifest.json").unlink()
    found = find_newest_valid(folder)
    assert found.opened is not None
    assert found.opened.name == "step-00000001"
    assert [path.step for path in found.passed_over] == [3, 2]
    assert "model.safetensors: it has other bytes" in found.passed_over[0].reason
    assert "manifest.json: it is missing" in found.passed_over[1].reason


def test_no_good_checkpoint_raises_with_all_their_names(folder):
    for path in folder.iterdir():
        flip(path / "state.json")
    with pytest.raises(CheckpointError, match="no valid checkpoint") as caught:
        find_newest_valid(folder)
    assert all(f"step-0000000{step} is damaged" in str(caught.value) for step in (1, 2, 3))
    assert "--run" in str(caught.value)


def test_empty_folder_is_not_an_error(tmp_path):
    assert find_newest_valid(tmp_path / "none").opened is None


def test_checkpoint_of_a_newer_version_raises_and_is_not_skipped(folder):
    rewritten(folder / "step-00000003", format=FORMAT + 1)
    with pytest.raises(CheckpointError, match="Install a newer one"):
        find_newest_valid(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_checkpoint_raises_and_is_not_skipped(folder):
    (folder / "step-00000003" / "state.json").chmod(0)
    with pytest.raises(CheckpointError, match="Permission denied"):
        find_newest_valid(folder)


def test_quarantined_checkpoint_is_not_listed(folder):
    for _ in range(2):
        aside = quarantine(list_checkpoints(folder)[-1])
    assert aside.name == "damaged-step-00000002"
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000001"]


def test_second_damaged_checkpoint_of_a_step_replaces_the_first(folder):
    """As when a run resumes before a damaged checkpoint, and a disk damages that step again."""
    for content in ("first", "second"):
        damaged = folder / "step-00000003"
        damaged.mkdir(exist_ok=True)
        (damaged / "state.json").write_text(content)
        aside = quarantine(damaged)
    assert (aside / "state.json").read_text() == "second"
    assert [path.name for path in aside.iterdir()] == ["state.json"]


def test_symlink_is_not_a_checkpoint(folder):
    (folder / "step-00000009").symlink_to(folder / "step-00000001")
    assert len(list_checkpoints(folder)) == 3


def test_checkpoint_deleted_while_it_is_read_is_not_corrupt(folder, monkeypatch):
    """As when another process keeps the last two checkpoints."""
    import surestep.record.checkpoint.manifest as manifest

    read, left = manifest.read_regular, [folder / "step-00000003"]

    def deleting(path, most=2**20):
        if left:
            (left[0] / "state.json").unlink()
            shutil.rmtree(left.pop())
        return read(path, most)

    monkeypatch.setattr(manifest, "read_regular", deleting)
    assert [checkpoint.step for checkpoint in scan_checkpoints(folder).good] == [1, 2]
    left.append(folder / "step-00000002")
    found = find_newest_valid(folder)
    assert found.opened is not None
    assert found.opened.name == "step-00000001"
    assert found.passed_over == ()


def test_checkpoint_that_replaces_those_that_were_listed_is_found(folder, monkeypatch):
    state, read, steps = tiny.state_of(steps=1), good.read_info, iter([4, 5])

    def replacing(path):
        if step := next(steps, None):
            state.progress = state.progress._replace(step=step)
            replacement = save_checkpoint(folder, state)
            for old in set(list_checkpoints(folder)) - {replacement}:
                shutil.rmtree(old)
        return read(path)

    monkeypatch.setattr(good, "read_info", replacing)
    assert [checkpoint.step for checkpoint in scan_checkpoints(folder).good] == [5]


def test_newest_checkpoint_is_found_if_it_replaces_those_that_were_listed(folder, monkeypatch):
    state, own, steps = tiny.state_of(steps=1), good.open_checkpoint, iter([4])

    def replacing(path):
        if step := next(steps, None):
            state.progress = state.progress._replace(step=step)
            replacement = save_checkpoint(folder, state)
            for old in set(list_checkpoints(folder)) - {replacement}:
                shutil.rmtree(old)
        return own(path)

    monkeypatch.setattr(good, "open_checkpoint", replacing)
    assert find_newest_valid(folder).opened.name == "step-00000004"


@pytest.mark.parametrize(("newest", "newer"), [([], [0, 2, 3, 4]), ([3], [4])])
def test_damaged_checkpoints_that_are_newer_than_all_good_ones_are_told_apart(newest, newer):
    good_ones = [CheckpointInfo(step, Metrics(), Path()) for step in newest]
    damaged = [CorruptCheckpoint(Path(checkpoint_name(step)), "") for step in (0, 2, 3, 4)]
    assert [each.step for each in CheckpointScan(good_ones, damaged).newer_damaged()] == newer


def test_folder_that_keeps_changing_is_reported(folder, monkeypatch):
    import surestep.record.checkpoint.discovery as good

    def gone(path):
        raise CheckpointVanishedError("gone")

    monkeypatch.setattr(good, "open_checkpoint", gone)
    with pytest.raises(CheckpointVanishedError, match="faster"):
        find_newest_valid(folder)


def test_corrupt_checkpoint_error_is_a_checkpoint_error():
    assert issubclass(CorruptCheckpointError, CheckpointError)
    assert not issubclass(CheckpointVanishedError, CorruptCheckpointError)


def test_cached_scan_reads_new_and_replaced_checkpoints(tmp_path, monkeypatch):
    read = []
    own = good.read_info
    monkeypatch.setattr(good, "read_info", lambda path: (read.append(path.name), own(path))[1])
    state = tiny.state_of()
    first = save_checkpoint(tmp_path, state)
    scan_checkpoints(tmp_path, cached=True)
    state.progress = state.progress._replace(step=9)
    second = save_checkpoint(tmp_path, state)
    assert [checkpoint.step for checkpoint in scan_checkpoints(tmp_path, cached=True).good] == [
        2,
        9,
    ]
    assert read == [first.name, second.name]
    state.best.latest, state.best.latest_step = {"val/loss": 0.5}, 9
    save_checkpoint(tmp_path, state)
    assert scan_checkpoints(tmp_path, cached=True).good[-1].metrics == {"val/loss": 0.5}
    assert read == [first.name, second.name, second.name]
