"""Two ranks compute what a plain loop of one process computes; all programs in one launch."""

from itertools import product

import pytest
import torch

from tests.laws.support.independence import find_dependent
from tests.multi_rank.torchrun import check_ended_well, launch
from tests.twice.compare import assert_same
from tests.twice.ranks import DRAWING, PROGRAMS, STRATEGIES

pytestmark = pytest.mark.slow("launches two ranks")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    check_ended_well(launch("2", "-m", "tests.twice.ranks", str(folder)))
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize(("name", "strategy"), list(product(PROGRAMS, STRATEGIES)))
def test_ranks(results, name, strategy):
    for rank, found in enumerate(results):
        result = found[name, strategy]
        assert not isinstance(result, str), result
        assert_same(*result, where=f"rank {rank}")


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers_of_ranks_are_independent(results, name):
    first, second = (found["draws", name] for found in results)
    others = {(*key, "rank 1"): column for key, column in second.items()}
    assert find_dependent(first | others) == []
