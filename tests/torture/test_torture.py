"""The small version of `make torture`: no run is lost, nothing damaged is loaded."""

from tests.torture.asked import ask


def test_kills_with_a_save_in_flight_lose_nothing(tmp_path):
    count = ask("kills", folder=str(tmp_path), wanted=6, width=5000)
    assert count["different"] == []
    assert (count["lost"], count["bad"]) == (0, 0)
    assert count["equal"] == count["resumes"] >= 5


def test_damage_in_any_file_of_a_checkpoint_is_seen(tmp_path):
    result = ask("flips", folder=str(tmp_path), flips=0)
    assert result["wrong"] == []
    assert sum(result["ends"].values()) >= 5 * 6  # five files, in six ways each


def test_disk_that_is_full_at_any_moment_loses_nothing(tmp_path):
    result = ask("disks", folder=str(tmp_path), sizes_kb=[400, 900, 1300])
    assert result["wrong"] == []
    assert any("error" in end for end in result["ends"])
