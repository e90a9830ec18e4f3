import pytest
import torch
from torch.utils.data import WeightedRandomSampler

from surestep import derive_seed, samplers
from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView

WEIGHTS = [0.0, 1.0, 2.0, 5.0, 0.5]
LABELS = [0] * 90 + [1] * 9 + [2]
FIVE = DatasetView(5, lambda: iter(range(5)))
HUNDRED = DatasetView(100, lambda: iter(range(100)), lambda: torch.tensor(LABELS))
CUT = BatchLayout(100, 8, 8)


@pytest.mark.parametrize(("samples", "replacement"), [(50, True), (3, False)])
def test_weighted_order_equals_torchs_weighted_random_sampler(samples, replacement):
    order = samplers.weighted(WEIGHTS, samples, replacement=replacement).bind(FIVE)
    generator = torch.Generator().manual_seed(derive_seed("order", 7, 3))
    sampler = WeightedRandomSampler(WEIGHTS, samples, replacement, generator=generator)
    assert order.indices(7, 3, 8).tolist() == list(sampler)
    assert len(order) == samples
    assert not torch.equal(order.indices(7, 4, 8), order.indices(7, 3, 8))


def test_samples_are_drawn_in_proportion_to_their_weights():
    order = samplers.weighted(WEIGHTS, 40_000).bind(FIVE)
    counts = torch.bincount(order.indices(0, 0, 8), minlength=5).double()
    expected = torch.tensor(WEIGHTS, dtype=torch.float64) / sum(WEIGHTS) * 40_000
    assert counts[0] == 0
    # chi-squared with 3 degrees of freedom: above 16.3 for one seed in a thousand
    assert float(((counts - expected)[1:] ** 2 / expected[1:]).sum()) < 16.3


@pytest.mark.parametrize("labels", [None, LABELS], ids=["targets", "labels"])
def test_balanced_order_draws_each_class_equally_often(labels):
    order = samplers.balanced(labels, 30_000).bind(HUNDRED)
    counts = torch.bincount(torch.tensor(LABELS)[order.indices(0, 0, 8)])
    assert (counts / 30_000).tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    assert order.explain(CUT, 0) == (
        "30000 drawn with replacement from 100 samples; each of 3 classes equally often, of 1 to 90"
    )


def test_default_epoch_length_is_the_length_of_the_data():
    assert len(samplers.balanced().bind(HUNDRED)) == 100
    assert len(samplers.weighted(WEIGHTS).bind(FIVE)) == 5


def test_labels_can_have_gaps_if_the_number_of_classes_is_not_set():
    four = DatasetView(4, lambda: iter(()), lambda: torch.tensor([5, 5, 5, 9]))
    drawn = samplers.balanced(samples=1000).bind(four).indices(0, 0, 8)
    assert float((drawn == 3).double().mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: samplers.weighted([1, -2, 1]), r"\[1\.0, -2\.0, 1\.0\]\. Give one finite weight"),
        (lambda: samplers.weighted([1, float("nan")]), "such as .*nan"),
        (lambda: samplers.weighted([1, float("inf")]), "such as .*inf"),
        (lambda: samplers.weighted([0, 0]), "and some above 0"),
        (lambda: samplers.weighted([[1.0]]), r"weights of shape \(1, 1\)"),
        (lambda: samplers.weighted(1.0), r"weights of shape \(\), such as \[1\.0\]"),
        (lambda: samplers.weighted(WEIGHTS, 0), r"weighted\(samples=0\) draws nothing"),
        (lambda: samplers.weighted([1.0] * 4).bind(FIVE), "4 weights and 5 training samples"),
        (
            lambda: samplers.weighted(WEIGHTS, 5, replacement=False).bind(FIVE),
            r"5 samples cannot be drawn .* from the 4 .* Use weighted\(weights, samples=4",
        ),
        (lambda: samplers.balanced().bind(FIVE), "finds no targets .* Give it the classes"),
        (lambda: samplers.balanced([0, 1]).bind(FIVE), r"each of the 5 samples, .* shape \(2,\)"),
        (lambda: samplers.balanced([]).bind(FIVE), r"each of the 5 samples, .* shape \(0,\)"),
        (lambda: samplers.balanced([0.5] * 5).bind(FIVE), "got torch.float32"),
        (
            lambda: samplers.balanced([0, -100, 1, 1, 1]).bind(FIVE),
            r"shape \(5,\), such as \[0, -100",
        ),
        (
            lambda: samplers.balanced([0, 0, 2, 2, 2], classes=3).bind(FIVE),
            r"each class from 0 to 2, and the data has no sample of class 1",
        ),
        (
            lambda: samplers.balanced([0, 1, 2, 2, 2], classes=2).bind(FIVE),
            r"each class from 0 to 1, and the data goes to 2",
        ),
    ],
)
def test_invalid_weights_and_labels_are_rejected(make, message):
    with pytest.raises(DataError, match=message):
        make()
