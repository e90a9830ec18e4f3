"""A few mutated run folders, the same each time; `fuzz_runs` tries many."""

from tests.torture.fuzz_runs import fuzz


def test_mutated_runs_are_rejected_or_accepted(tmp_path):
    tried, came, crashes = fuzz(5, 2.0, tmp_path)
    assert crashes == []
    assert tried == came["refused"] + came["taken"]
    assert came["refused"] > 0
