"""Which run folder a rank sees that does not hold its lock."""

import json

from surestep.record.lock import RunLock, lock_owner
from surestep.trainer import rank_zero as together
from surestep.trainer.rank_zero import is_same_folder


def test_rank_sees_the_folder_that_rank_zero_has_locked(tmp_path):
    hold = RunLock(tmp_path)
    said = hold.text
    hold.release()
    assert is_same_folder(tmp_path, said)
    assert json.loads(said).keys() == {"host", "pid"}


def test_folder_of_the_same_name_on_a_different_machine_is_detected(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "_NETWORK_DELAY_S", 0.06)
    (tmp_path / "lock").write_text('{"host": "another", "pid": 1}')
    assert not is_same_folder(tmp_path, '{"host": "this", "pid": 1}')
    assert not is_same_folder(tmp_path / "none", '{"host": "this", "pid": 1}')
    assert lock_owner(tmp_path / "none") == ""
