from tests.tuning.kills import kill_search


def test_killed_search_ends_with_all_trials_as_if_it_was_not_killed(tmp_path):
    for name in ("plain", "killed"):
        (tmp_path / name).mkdir()
    assert kill_search(tmp_path, kills=3, trials=6, seed=0) == []
