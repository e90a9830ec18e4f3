import pytest

from surestep.base.errors import DataError
from surestep.engine.data.lengths import EpochLengths, check_new_length
from surestep.engine.data.samplers import sequential, shuffled, weighted
from surestep.engine.plan.batching import BatchLayout
from tests import tiny

ONE = BatchLayout(20, 7, 7)


def test_epoch_has_the_length_of_the_last_change_up_to_it():
    lengths = EpochLengths(20)
    lengths.change(2, 30)
    lengths.change(5, 10)
    assert [lengths.of(epoch) for epoch in range(7)] == [20, 20, 30, 30, 30, 10, 10]


def test_change_after_a_rollback_replaces_later_ones():
    lengths = EpochLengths(20)
    lengths.change(2, 30)
    lengths.change(5, 10)
    lengths.change(1, 25)
    assert [lengths.of(epoch) for epoch in range(7)] == [20, *[25] * 6]


def test_lengths_are_saved_and_loaded():
    lengths, again = EpochLengths(20), EpochLengths(30)
    assert lengths.state_dict() == {}
    lengths.change(1, 30)
    again.change(4, 7)
    again.load_state_dict(lengths.state_dict())
    assert again.changes == {1: 30}
    again.load_state_dict({})
    assert again.changes == {}


def test_epoch_with_another_length_is_reported_and_read_in_full():
    samples, reported = [*zip(*tiny.data(20), strict=True)], []
    loader = tiny.train_loader({"train": samples})
    loader.report_length = lambda *given: reported.append(given)
    ends = []
    for epoch, count in enumerate((20, 20, 13, 27)):
        samples[:] = zip(*tiny.data(count), strict=True)
        batches = list(loader.batches(epoch))
        ends.append((batches[-1].end, sum(batch.samples for batch in batches)))
    assert ends == [(20, 20), (20, 20), (13, 13), (27, 27)]
    assert reported == [(2, 20, 13), (3, 13, 27)]
    assert [loader.count_positions(epoch) for epoch in range(5)] == [20, 20, 13, 27, 27]


@pytest.mark.parametrize("order", [shuffled(), sequential()])
@pytest.mark.parametrize("layout", [ONE, ONE._replace(drop_last=True)])
def test_other_length_is_allowed_if_all_samples_are_read_once(order, layout):
    check_new_length(7, 20, order, layout)


@pytest.mark.parametrize(
    ("samples", "order", "layout", "why"),
    [
        (6, shuffled(), ONE._replace(drop_last=True), "less than one batch.* at least 7"),
        (27, weighted([1.0] * 20), ONE, "the order 'weighted' is for 20.*from_="),
        (27, shuffled(), ONE._replace(ranks=2), "several ranks would have to agree.*from_="),
    ],
)
def test_length_that_cannot_change_is_an_error(samples, order, layout, why):
    with pytest.raises(DataError, match=rf"had 20 samples .* has {samples} now, .*{why}"):
        check_new_length(samples, 20, order, layout)
