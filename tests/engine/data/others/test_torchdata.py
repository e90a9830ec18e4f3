"""torchdata's StatefulDataLoader as a DataLoader, and torchdata nodes from a function."""

import gc

import pytest
import torch

from surestep.base.errors import DataError
from tests import tiny
from tests.engine.data.streams import Shared, X, Y
from tests.needs import needs

nodes = needs("torchdata.nodes")
StatefulDataLoader = needs("torchdata.stateful_dataloader").StatefulDataLoader

# StatefulDataLoader calls a function of torch that is deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    # torchdata's own threads, released before they have started.
    pytest.mark.filterwarnings("ignore:Exception ignored in.*_ParallelMapperIter"),
]


@pytest.fixture(autouse=True)
def collect_garbage():
    """Collect garbage at the end of each test, so that none is collected in a later test."""
    yield
    gc.collect()


def sample(index):
    return X[index], Y[index]


def loader():
    return nodes.Loader(nodes.Mapper(nodes.IterableWrapper(range(44)), sample))


def threaded():
    mapped = nodes.ParallelMapper(
        nodes.IterableWrapper(range(44)), sample, num_workers=2, method="thread"
    )
    return nodes.Loader(nodes.Prefetcher(mapped, prefetch_factor=2))


def inputs_of(train, start=0, **said):
    parts = {"train": train, "loss": lambda o, t: o.mean()}
    loader = tiny.train_loader(parts, **{"max_steps": 6, **said})
    found = list(loader.batches(0, start))
    loader.close()
    return torch.cat([micro.args[0] for batch in found for micro in batch.micro_batches])


@pytest.mark.parametrize("make", [loader, threaded])
def test_function_that_creates_nodes_is_a_stream(make):
    assert torch.equal(inputs_of(make), X)
    assert torch.equal(inputs_of(make, start=16), X[16:])


@pytest.mark.parametrize("data", [loader(), loader().root], ids=["loader", "node"])
def test_existing_nodes_that_can_be_read_only_once_are_rejected(data):
    with pytest.raises(DataError, match=r"has one iterator .* train=lambda: make_samples\(\)"):
        inputs_of(data)


def test_stateful_dataloader_is_used_like_a_dataloader():
    samples = list(zip(X, Y, strict=True))
    found = inputs_of(StatefulDataLoader(samples, 8, shuffle=True))
    assert torch.equal(found, inputs_of((X, Y)))


def test_workers_of_a_stateful_dataloader_over_a_stream_are_used():
    found = inputs_of(StatefulDataLoader(Shared(), 8, num_workers=2))
    assert sorted(found.tolist()) == sorted(X.tolist())
