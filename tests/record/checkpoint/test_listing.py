from surestep.record.checkpoint.discovery import list_checkpoints
from surestep.record.checkpoint.state_json import CheckpointInfo, read_info
from tests import tiny
from tests.record.checkpoint.on_disk import save_checkpoint


def test_checkpoints_are_listed_by_step(tmp_path):
    for name in ("step-100000000", "step-00000002", "step-00000010", ".tmp-step-00000011-1", "x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000003").write_text("a file")
    assert [path.name[-3:] for path in list_checkpoints(tmp_path)] == ["002", "010", "000"]
    assert list_checkpoints(tmp_path / "none") == []


def test_saved_is_step_and_metrics(tmp_path):
    state = tiny.state_of()
    state.best.latest, state.best.latest_step = {"val/loss": 0.5}, 2
    path = save_checkpoint(tmp_path, state)
    assert read_info(path) == CheckpointInfo(2, {"val/loss": 0.5}, path)
