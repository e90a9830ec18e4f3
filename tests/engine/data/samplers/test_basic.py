import torch

from surestep import samplers
from surestep.engine.plan.batching import BatchLayout, DatasetView, epoch_permutation

DATA = DatasetView(20, lambda: iter(range(20)))


def test_shuffled_order_is_the_epoch_permutation():
    order = samplers.shuffled().bind(DATA)
    assert len(order) == 20
    assert torch.equal(order.indices(3, 2, 8), epoch_permutation(20, 3, 2))


def test_sequential_order_has_no_indices():
    order = samplers.sequential().bind(DATA)
    assert len(order) == 20
    assert order.indices(3, 2, 8) is None
    assert (order.name, order.explain(BatchLayout(20, 8, 8), 0)) == (
        *("sequential", "each sample once, as stored"),
    )
