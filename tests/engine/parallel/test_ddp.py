"""The options that DDP is called with."""

import pytest
import torch
import torch.distributed as dist

from surestep.engine.parallel.ddp import DDPStrategy
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
