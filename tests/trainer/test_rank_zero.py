"""Which folder a rank sees that does not hold it."""

import json

from surestep.record.lock import RunLock, lock_owner
from surestep.trainer import rank_zero as together
from surestep.trainer.rank_zero import is_same_folder


def test_a_rank_sees_the_folder_that_the_first_one_holds(tmp_path):
    hold = RunLock(tmp_path)
    said = hold.text
    hold.release()
    assert is_same_folder(tmp_path, said)
    assert json.loads(said).keys() == {"host", "pid"}


def test_a_folder_of_the_same_name_on_another_machine_is_not_the_one(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "_NETWORK_DELAY_S", 0.06)
    (tmp_path / "lock").write_text('{"host": "another", "pid": 1}')
    assert not is_same_folder(tmp_path, '{"host": "this", "pid": 1}')
    assert not is_same_folder(tmp_path / "none", '{"host": "this", "pid": 1}')
    assert lock_owner(tmp_path / "none") == ""
