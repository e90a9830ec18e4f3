"""The small version of `make torture`: no run is lost, no corrupt checkpoint is loaded."""

from tests.torture.warm_process import ask


def test_kills_during_a_save_lose_nothing(tmp_path):
    count = ask("kills", folder=str(tmp_path), wanted=6, width=5000)
    assert count["different"] == []
    assert (count["lost"], count["bad"]) == (0, 0)
    assert count["equal"] == count["resumes"] >= 5


def test_damage_in_any_file_of_a_checkpoint_is_detected(tmp_path):
    result = ask("flips", folder=str(tmp_path), flips=0)
    assert result["wrong"] == []
    assert sum(result["ends"].values()) >= 5 * 6  # five files, each in six ways


def test_full_disk_at_any_moment_loses_nothing(tmp_path):
    result = ask("disks", folder=str(tmp_path), sizes_kb=[400, 900, 1300])
    assert result["wrong"] == []
    assert any("error" in end for end in result["ends"])
