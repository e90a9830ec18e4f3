"""The options that DDP is called with."""

import pytest
import torch
import torch.distributed as dist

from surestep.engine.parallel.ddp import DDPStrategy
from surestep.engine.step_outcome import Gradients, Logged
from tests import tiny


@pytest.fixture
def group():
    """A process group with one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_gradients_are_views_of_the_buckets(group):
    model = tiny.model()
    wrapped = DDPStrategy.wrap_model(object.__new__(DDPStrategy), model, tiny.plan().plan)
    wrapped(torch.ones(2, tiny.FEATURES)).sum().backward()
    storages = {each.grad.untyped_storage().data_ptr() for each in model.parameters()}
    assert len(storages) == 1


def test_items_that_arrive_with_the_gradients_divide_sums_and_no_means():
    """8 samples have 2 items: what was divided by the samples is four times too small."""
    strategy, weight = object.__new__(DDPStrategy), torch.nn.Parameter(torch.zeros(3))
    strategy.parameters, weight.grad = [weight], torch.full((3,), 0.5)
    logged = [Logged("term", torch.tensor(0.25)), Logged("mean", torch.tensor(12.0), 6.0)]
    found = strategy._divide_again(Gradients(torch.tensor(4.0), 8.0, logged), 2.0)
    assert weight.grad.tolist() == [2.0] * 3
    assert (float(found.loss_sum), found.items) == (4.0, 2.0)
    assert [(part.name, float(part.value), part.items) for part in found.logged] == [
        ("term", 1.0, 0.0),
        ("mean", 12.0, 6.0),
    ]
