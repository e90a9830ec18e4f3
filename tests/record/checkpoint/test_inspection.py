from surestep.record.checkpoint.discovery import (
    examine,
    examine_all,
    list_all_folders,
    list_checkpoints,
    size_on_disk,
)
from surestep.record.checkpoint.reader import CheckpointInfo, read_info
from tests import tiny
from tests.record.checkpoint.forge import forge_record
from tests.record.checkpoint.on_disk import save_checkpoint


def test_inspection_of_an_intact_checkpoint(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    found = examine(path, every_byte=True)
    assert (found.verified, found.problems, found.saved.step) == (True, (), 2)
    assert (found.saved.epoch, found.saved.position) == (0, 0)
    assert found.bytes == sum(file.stat().st_size for file in path.iterdir())
    assert found.written == (path / "manifest.json").stat().st_mtime


def test_unread_checkpoint_is_not_reported_as_verified(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    assert examine(path, every_byte=False).verified is None


def test_damaged_checkpoint_reports_its_readable_values(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    found = examine(path, every_byte=True)
    assert (found.verified, found.saved.step) == (False, 2)
    assert found.problems == ("model.safetensors: it has other bytes than were written.",)


def test_every_damaged_file_is_reported(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    for name in ("model.safetensors", "state.json"):
        (path / name).write_bytes(b"")
    found = examine(path, every_byte=True)
    assert [problem.partition(":")[0] for problem in found.problems] == [
        *("state.json", "model.safetensors")
    ]
    assert (found.verified, found.saved) == (False, None)


def test_checkpoint_whose_numbers_cannot_be_right_is_reported(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    forge_record(path, counts__clipped=3)
    found = examine(path, every_byte=True)
    assert (found.verified, found.saved.step) == (False, 2)
    assert found.problems == ("state.json: counts.clipped is 3, and 2 steps were taken.",)


def test_empty_checkpoint_folder_is_corrupt(tmp_path):
    (tmp_path / "step-00000001").mkdir()
    (found,) = examine_all(tmp_path, every_byte=False)
    assert (found.verified, found.saved, found.written, found.bytes) == (False, None, None, 0)


def test_missing_checkpoint_is_not_found(tmp_path):
    assert examine(tmp_path / "step-00000001", every_byte=True) is None


def test_size_does_not_follow_symlinks(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "large").write_bytes(b"x" * 1000)
    (tmp_path / "c" / "link").symlink_to(tmp_path / "large")
    (tmp_path / "c" / "own").write_bytes(b"x" * 10)
    assert size_on_disk(tmp_path / "c") == 10


def test_checkpoints_are_listed_by_step(tmp_path):
    for name in ("step-100000000", "step-00000002", "step-99999999", ".tmp-step-00000011-1", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000003").write_text("a file")
    assert [path.name[-3:] for path in list_checkpoints(tmp_path)] == ["002", "999", "000"]
    assert list_checkpoints(tmp_path / "none") == []


def test_damaged_checkpoints_are_listed_among_the_others_by_step(tmp_path):
    names = [
        *("step-00000002", "damaged-step-00000010", "step-00000010", "damaged-step-00000020"),
        *("step-99999999", "step-100000000"),
    ]
    for name in (*reversed(names), "damaged-file"):
        (tmp_path / name).mkdir() if name in names else (tmp_path / name).touch()
    assert [path.name for path in list_all_folders(tmp_path)] == names


def test_checkpoint_of_a_step_that_was_not_evaluated_has_no_metrics(tmp_path):
    state = tiny.state_of()
    state.best.latest, state.best.latest_step = {"val/loss": 0.5}, 1
    path = save_checkpoint(tmp_path, state)
    assert read_info(path) == CheckpointInfo(2, {}, path, latest={"val/loss": 0.5})


def test_saved_checkpoint_has_step_and_metrics(tmp_path):
    state = tiny.state_of()
    state.best.latest, state.best.latest_step = {"val/loss": 0.5}, 2
    path = save_checkpoint(tmp_path, state)
    assert read_info(path) == CheckpointInfo(2, {"val/loss": 0.5}, path, latest={"val/loss": 0.5})
