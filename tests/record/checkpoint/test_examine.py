from surestep.record.checkpoint.discovery import examine, examine_all, size_on_disk
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint


def test_a_good_one(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    found = examine(path, every_byte=True)
    assert (found.verified, found.problems, found.saved.step) == (True, (), 2)
    assert (found.saved.epoch, found.saved.position) == (0, 0)
    assert found.bytes == sum(each.stat().st_size for each in path.iterdir())
    assert found.written == (path / "manifest.json").stat().st_mtime


def test_what_was_not_read_is_not_called_verified(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    assert examine(path, every_byte=False).verified is None


def test_a_damaged_one_still_says_what_can_be_read(tmp_path):
    path = save_checkpoint(tmp_path, tiny.state_of())
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)
    found = examine(path, every_byte=True)
    assert (found.verified, found.saved.step) == (False, 2)
    assert found.problems == ("model.safetensors: it has other bytes than were written.",)


def test_an_empty_folder_is_damaged(tmp_path):
    (tmp_path / "step-00000001").mkdir()
    (found,) = examine_all(tmp_path, every_byte=False)
    assert (found.verified, found.saved, found.written, found.bytes) == (False, None, None, 0)


def test_one_that_is_not_there_is_none(tmp_path):
    assert examine(tmp_path / "step-00000001", every_byte=True) is None


def test_links_are_not_followed_for_the_size(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "large").write_bytes(b"x" * 1000)
    (tmp_path / "c" / "link").symlink_to(tmp_path / "large")
    (tmp_path / "c" / "own").write_bytes(b"x" * 10)
    assert size_on_disk(tmp_path / "c") == 10
