from dataclasses import replace

import pytest
import torch

from surestep import samplers
from surestep.base.errors import DataError
from surestep.engine.data.samplers.length import padding_fraction
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.plan.batching import BatchLayout, DatasetView, epoch_permutation
from tests import tiny

LENGTHS = torch.randint(1, 100, (203,), generator=torch.Generator().manual_seed(0))
DATA = DatasetView(203, lambda: iter([[0] * int(each) for each in LENGTHS]))


@pytest.mark.parametrize("window", [1, 5, 1000])
@pytest.mark.parametrize("batch_size", [1, 8, 203, 500])
def test_every_sample_occurs_once_per_epoch(window, batch_size):
    order = samplers.by_length(LENGTHS, window=window).bind(DATA)
    found = order.indices(0, 3, batch_size)
    assert sorted(found.tolist()) == list(range(203))
    assert torch.equal(found, order.indices(0, 3, batch_size))
    assert not torch.equal(found, order.indices(0, 4, batch_size))


def spreads(order, batch_size=8):
    """Return the range of lengths in each full batch."""
    ordered = LENGTHS[order[: len(order) // batch_size * batch_size]].view(-1, batch_size)
    return (ordered.max(1).values - ordered.min(1).values).double()


def test_batches_have_similar_lengths_and_are_shuffled():
    found = samplers.by_length(LENGTHS, window=1000).bind(DATA).indices(0, 0, 8)
    assert float(spreads(found).mean()) < 6 < float(spreads(epoch_permutation(203, 0, 0)).mean())
    longest = LENGTHS[found[:200]].view(-1, 8).max(1).values
    assert longest.tolist() != sorted(longest.tolist())


def test_wider_window_gives_batches_of_more_similar_length():
    parts = [
        spreads(samplers.by_length(LENGTHS, window=w).bind(DATA).indices(0, 0, 8)) for w in (1, 5)
    ]
    assert float(parts[1].mean()) < float(parts[0].mean())


def test_smaller_last_batch_has_random_lengths():
    order = samplers.by_length(LENGTHS, window=1000).bind(DATA)
    rest = torch.cat([LENGTHS[order.indices(0, epoch, 8)[200:]] for epoch in range(100)]).double()
    assert float(rest.mean()) == pytest.approx(float(LENGTHS.double().mean()), rel=0.1)


def test_padding_fraction_is_relative_to_the_longest_sample_of_a_batch():
    lengths, order = torch.tensor([1, 4, 2, 2, 3]), torch.arange(5)
    assert padding_fraction(lengths, order, BatchLayout(5, 4, 2)) == pytest.approx(
        1 - 12 / (8 + 4 + 3)
    )
    assert padding_fraction(lengths, order, BatchLayout(5, 4, 4)) == pytest.approx(
        1 - 12 / (16 + 3)
    )
    assert padding_fraction(lengths, order, BatchLayout(5, 4, 4, drop_last=True)) == pytest.approx(
        1 - 9 / 16
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 11])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("batch_size", "micro_batch_size"), [(10, 4), (8, 4), (7, 1), (100, 30)])
def test_padding_fraction_is_that_of_the_micro_batches_of_a_run(
    batch_size, micro_batch_size, drop_last, ranks
):
    layout = BatchLayout(203, batch_size, micro_batch_size, drop_last, ranks=ranks, full=True)
    spans = [
        span for first, end, _ in layout.batches(0) for span in layout.micro_batches(first, end)
    ]
    micros = [LENGTHS[first:end] for first, end in spans if end > first]
    padded = sum(len(micro) * int(micro.max()) for micro in micros)
    expected = 1 - sum(int(micro.sum()) for micro in micros) / padded
    assert padding_fraction(LENGTHS, torch.arange(203), layout) == pytest.approx(expected)


def test_explanation_reports_the_padding_with_and_without_sorting():
    order = samplers.by_length(LENGTHS, window=5).bind(DATA)
    cut = BatchLayout(203, 8, 4)
    ours = padding_fraction(LENGTHS, order.indices(7, 0, 8), cut)
    plain = padding_fraction(LENGTHS, epoch_permutation(203, 7, 0), cut)
    assert ours < plain / 2
    text = f"padding {ours:.1%} instead of {plain:.1%}; windows of 5 batches"
    assert order.explain(cut, 7) == text


@pytest.mark.parametrize(("ranks", "padding"), [(1, "43.8%"), (2, "25.0%")])
def test_plan_reports_the_padding_of_the_shares_of_the_ranks(ranks, padding):
    """One rank pads 1 to 8 to 8; of two ranks the first pads 1 to 4 to 4, the other 5 to 8 to 8."""
    order = samplers.by_length(range(1, 9)).bind(DatasetView(8, lambda: iter(())))
    given = replace(tiny.GIVEN, train_samples=8, order=order)
    system = replace(tiny.FACTS, launched=LaunchInfo(size=ranks, local_size=ranks))
    plan = tiny.decide({"batch_size": 8}, system, given)
    assert plan.reason("data.sampler").startswith(f"padding {padding} instead of")


def test_lengths_can_be_computed_by_a_function():
    measured = samplers.by_length(len).bind(DATA)
    assert torch.equal(
        measured.indices(0, 0, 8), samplers.by_length(LENGTHS).bind(DATA).indices(0, 0, 8)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: samplers.by_length(LENGTHS[:5]).bind(DATA), r"shape \(5,\) and 203 training"),
        (lambda: samplers.by_length(LENGTHS - 50).bind(DATA), r"length of sample \d+ is -49"),
        (lambda: samplers.by_length(LENGTHS, window=0), r"window=0\) sorts nothing"),
    ],
)
def test_invalid_lengths_are_rejected(make, message):
    with pytest.raises(DataError, match=message):
        make()
