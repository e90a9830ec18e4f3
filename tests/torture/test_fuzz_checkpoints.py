"""A few mutated checkpoints, the same each time; `fuzz_checkpoints` tries many."""

import random

from tests.torture.fuzz_checkpoints import fuzz, good_files, mutated


def test_mutated_checkpoints_are_rejected_or_loaded(tmp_path):
    tried, came, crashes = fuzz(5, 0, 2.0, tmp_path)
    assert crashes == []
    assert tried == came["refused"] + came["loaded"]
    assert came["refused"] > 0


def test_input_depends_only_on_its_number(tmp_path):
    good = good_files(tmp_path)
    one, same, other = (mutated(good, random.Random(seed)) for seed in ("1 5", "1 5", "1 6"))
    assert one == same != other
