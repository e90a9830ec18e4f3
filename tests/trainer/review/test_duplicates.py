"""Samples of one set that are in another one: which they are, and what share they have."""

import pytest
import torch

from surestep.trainer.review.data_case import ReadSplit
from surestep.trainer.review.duplicates import find_duplicates, is_same

COUNT = 60


def rows(seed, count=COUNT):
    """Rows of four numbers of different scales, of which the last never varies."""
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return values * torch.tensor([1.0, 1e6, 1e-3, 0.0]) + torch.tensor([0.0, 0.0, 5.0, 2.0])


def split(values, every=2, count=None):
    """Return a split of which every second row was read, or so."""
    read = len(values)
    digests = [row.numpy().tobytes() for row in values]
    indices = [at * every for at in range(read)]
    return ReadSplit("a", every * read if count is None else count, indices, digests, (values,))


def test_pairs_are_indices_and_the_share_is_that_of_all_samples():
    train, other = rows(0), rows(1)
    other[:4] = train[5:9]
    found = find_duplicates(split(train), split(other, every=3))
    assert found.pairs == [(0, 10), (3, 12), (6, 14), (9, 16)]
    assert (found.share, found.is_exact) == (pytest.approx(4 / COUNT * 2), True)
    unknown = ReadSplit("a", None, list(range(COUNT)), split(other).digests, (other,))
    of_stream = find_duplicates(split(train), unknown)
    assert (of_stream.share, len(of_stream.pairs)) == (pytest.approx(4 / COUNT), 4)


def test_rows_of_one_value_are_not_duplicates():
    train, other = rows(0), rows(1)
    train[3], other[7] = 0.0, 0.0
    assert find_duplicates(split(train), split(other)) is None


def test_near_duplicates_are_near_in_each_column_by_its_own_scale():
    """Of four more rows only the largest numbers are equal."""
    train, other = rows(0), rows(1, 30)
    spread = train.std(0)
    other[2:5] = train[20:23] + 1e-4 * spread
    other[10:14, 1] = train[30:34, 1]
    found = find_duplicates(split(train), split(other, every=3))
    assert found.pairs == [(6, 40), (9, 42), (12, 44)]
    assert (found.share, found.is_exact) == (pytest.approx(3 / 30), False)


def test_rows_with_few_values_are_equal_by_chance():
    values = torch.randint(0, 5, (COUNT, 2), generator=torch.Generator().manual_seed(0))
    for table in (values, values.float()):
        assert find_duplicates(split(table), split(table)) is None


@pytest.mark.parametrize(
    ("read", "count", "other_count", "expected"),
    [
        (4, 60, 60, True),
        (3, 60, 60, False),
        (3, 3, 3, True),
        (4, 60, 61, False),
        (0, 60, 60, False),
    ],
)
def test_sets_are_the_same_if_enough_of_them_was_read(read, count, other_count, expected):
    values = rows(0)[:read]
    assert is_same(split(values, count=count), split(values, count=other_count)) is expected
    other = values.clone()
    other[:1] += 1
    assert not is_same(split(values, count=count), split(other, count=count)) or not read
