import torch

from surestep import orders
from surestep.engine.data.order import Cut, Samples, order_of

DATA = Samples(20, lambda: iter(range(20)))


def test_a_shuffle_is_the_order_where_nothing_is_said():
    order = orders.shuffled().over(DATA)
    assert len(order) == 20
    assert torch.equal(order.at(3, 2, 8), order_of(20, 3, 2))


def test_the_stored_order_is_none():
    order = orders.sequential().over(DATA)
    assert len(order) == 20
    assert order.at(3, 2, 8) is None
    assert (order.name, order.explain(Cut(20, 8, 8), 0)) == (
        *("sequential", "each sample once, as stored"),
    )
