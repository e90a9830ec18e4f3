import pytest
import torch

from surestep import samplers
from surestep.base.errors import DataError
from surestep.engine.data.samplers.mixtures import split_by_share
from surestep.engine.plan.batching import BatchLayout, DatasetView

SIZES = {"books": 30, "code": 7}
DATA = DatasetView(37, lambda: iter(range(37)), parts=SIZES)
SHARES = {"books": 0.4, "code": 0.6}


def test_each_epoch_has_each_dataset_by_its_share():
    order = samplers.mixture(SHARES, 50).bind(DATA)
    for epoch in range(4):
        rows = order.indices(0, epoch, 8)
        assert [int((rows < 30).sum()), int((rows >= 30).sum())] == [20, 30]
    text = "an epoch has 20 of books (30 samples), 30 of code (7 samples)"
    assert order.explain(BatchLayout(50, 8, 8), 0) == text


def test_mixture_reads_each_dataset_fully_before_it_repeats():
    order = samplers.mixture(SHARES, 50).bind(DATA)
    rows = torch.cat([order.indices(0, epoch, 8) for epoch in range(7)])
    books, code = rows[rows < 30], rows[rows >= 30] - 30
    for part, size in ((books, 30), (code, 7)):
        for one in part[: len(part) // size * size].view(-1, size):
            assert sorted(one.tolist()) == list(range(size))
    assert len(set(map(tuple, code[:210].view(-1, 7).tolist()))) > 20


def test_order_of_a_mixture_does_not_depend_on_earlier_epochs():
    order = samplers.mixture(SHARES, 50).bind(DATA)
    late = order.indices(0, 1000, 8)
    assert torch.equal(late, samplers.mixture(SHARES, 50).bind(DATA).indices(0, 1000, 8))
    assert not torch.equal(late, order.indices(1, 1000, 8))


def test_datasets_of_a_mixture_alternate_randomly():
    owner = (
        samplers.mixture({"books": 0.5, "code": 0.5}, 4000).bind(DATA).indices(0, 0, 8) < 30
    ).int()
    changes = int((owner[1:] != owner[:-1]).sum())
    assert 1800 < changes < 2200


def test_default_epoch_of_a_mixture_has_the_total_length_of_its_datasets():
    assert len(samplers.mixture(SHARES).bind(DATA)) == 37


@pytest.mark.parametrize("samples", [1, 2, 3, 10, 101])
def test_shares_are_rounded_to_counts_that_add_up(samples):
    shares = {"a": 0.5, "b": 0.3, "c": 0.2}
    found = split_by_share(shares, samples)
    assert sum(found.values()) == samples
    assert all(abs(found[name] - shares[name] * samples) < 1 for name in shares)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: samplers.mixture({"a": 7, "b": 3}),
            r"shares \{'a': 7, 'b': 3\}, which add up to 10\. Give shares above 0",
        ),
        (lambda: samplers.mixture({"a": 1.0, "b": 0.0}), "above 0"),
        (lambda: samplers.mixture({"a": 1.5, "b": -0.5}), "'b': -0.5"),
        (lambda: samplers.mixture({"a": float("nan")}), "add up to nan"),
        (lambda: samplers.mixture(SHARES, 0), r"samples=0\) draws nothing"),
        (
            lambda: samplers.mixture({"books": 0.5, "cod": 0.5}).bind(DATA),
            r"shares of \['books', 'cod'\], and train is the datasets \['books', 'code'\]",
        ),
        (
            lambda: samplers.mixture(SHARES).bind(DatasetView(5, lambda: iter(()))),
            "train is one dataset",
        ),
        (
            lambda: samplers.mixture({"books": 0.999, "code": 0.001}).bind(DATA),
            "share of 0.001 for 'code' is less than one sample in an epoch of 37",
        ),
    ],
)
def test_invalid_shares_are_rejected(make, message):
    with pytest.raises(DataError, match=message):
        make()
