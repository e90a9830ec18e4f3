import random

import numpy as np
import pytest
import torch

from surestep import samplers
from surestep.base.errors import DataError
from surestep.engine.plan.batching import BatchLayout, DatasetView

DATA = DatasetView(10, lambda: iter(range(10)))


def every_second(seed, epoch):
    return range(epoch % 2, 10, 2)


def test_custom_function_sets_the_order():
    order = samplers.custom(every_second).bind(DATA)
    assert len(order) == 5
    assert order.indices(0, 3, 8).tolist() == [1, 3, 5, 7, 9]
    assert order.explain(BatchLayout(5, 8, 8), 0).startswith(
        "The order function every_second: 5 positions"
    )


def test_random_custom_order_is_repeatable_and_preserves_the_random_state():
    def drawn(seed, epoch):
        return [random.randrange(10), int(np.random.randint(10)), *torch.randperm(10).tolist()]

    before = torch.get_rng_state(), random.getstate()
    order = samplers.custom(drawn).bind(DATA)
    assert torch.equal(order.indices(0, 2, 8), order.indices(0, 2, 8))
    assert not torch.equal(order.indices(0, 2, 8), order.indices(0, 3, 8))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def by_history():
    state = random.Random(0)
    return lambda seed, epoch: state.sample(range(10), 10)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (by_history(), r"gave two orders for the same seed and epoch.* depend on \(seed, epoch\)"),
        (lambda seed, epoch: range(epoch + 1), "gave 2 indices for epoch 2, and its length is 1"),
        (
            lambda seed, epoch: [0, 10],
            r"from 0 to 10 for epoch 1, and there are 10 training samples",
        ),
        (lambda seed, epoch: [-1], "from -1 to -1"),
        (lambda seed, epoch: [], r"of shape \(0,\) for epoch 1"),
        (lambda seed, epoch: torch.rand(3), "gave torch.float32"),
    ],
)
def test_custom_order_that_cannot_be_resumed_is_rejected(function, message):
    with pytest.raises(DataError, match=message):
        samplers.custom(function).bind(DATA)
