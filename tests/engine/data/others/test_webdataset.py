"""WebDataset: tar files of samples, split among workers."""

import pytest
import torch

from surestep.base.errors import DataError
from tests import tiny
from tests.engine.data.streams import X, Y
from tests.needs import needs

wds = needs("webdataset")
# It leaves files to the garbage collector if it is not read to its end.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    """Return four tar files that contain the samples in order."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(4):
        with wds.TarWriter(f"{folder}/{shard}.tar") as tar:
            for index in range(11 * shard, 11 * shard + 11):
                row = {"x.json": X[index].tolist(), "y.cls": int(Y[index])}
                tar.write({"__key__": f"{index:04d}", **row})
    return [f"{folder}/{shard}.tar" for shard in range(4)]


def stream(urls, **options):
    found = wds.WebDataset(urls, **{"shardshuffle": False, **options})
    return found.decode().to_tuple("x.json", "y.cls").map(sample)


def sample(row):
    return torch.tensor(row[0]), row[1]


def inputs_of(train, epoch=0, start=0, **said):
    parts = {"train": train, "loss": lambda o, t: o.mean()}
    loader = tiny.train_loader(parts, **{"max_steps": 6, **said})
    found = list(loader.batches(epoch, start))
    loader.close()
    return torch.cat([micro.args[0] for batch in found for micro in batch.micro_batches])


def test_webdataset_is_read_in_the_order_of_the_files(urls):
    assert torch.equal(inputs_of(stream(urls)), X)


def test_files_of_a_webdataset_are_distributed_to_the_workers(urls):
    found = inputs_of(stream(urls), data={"num_workers": 2})
    assert sorted(found.tolist()) == sorted(X.tolist())


def test_webdataset_workers_without_a_worker_splitter_are_rejected(urls):
    with pytest.raises(DataError, match=r"num_workers=2, but several of these workers read the"):
        inputs_of(stream(urls, workersplitter=None), data={"num_workers": 2})


@pytest.mark.filterwarnings("ignore:.with_length")
def test_length_of_a_webdataset_that_is_set_is_used(urls):
    assert tiny.plan({"train": stream(urls).with_length(44)}, epochs=2).plan.total_steps == 12


def test_webdataset_shuffling_seeded_by_the_clock_is_rejected(urls):
    with pytest.raises(DataError, match=r"begins with different samples .*seed=epoch"):
        inputs_of(stream(urls).shuffle(20))


def test_webdataset_shuffling_seeded_by_the_epoch_can_resume(urls):
    def train(epoch):
        return stream(urls, shardshuffle=100, seed=epoch).shuffle(20, seed=epoch)

    first, second, again = (inputs_of(train, epoch) for epoch in (0, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(inputs_of(train, 1, start=24), second[24:])
