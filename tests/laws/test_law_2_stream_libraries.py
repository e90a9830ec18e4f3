"""Law 2 for streams of Hugging Face and torchdata, which have a `state_dict`."""

import re

import pytest
import torch

from tests.laws.support.stateful_streams import READ, Counted, check_with_output
from tests.laws.support.tasks import Augmented
from tests.needs import needs

pytestmark = pytest.mark.usefixtures("take_every_state")


@pytest.mark.slow("needs datasets")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mixed", [False, True])
def test_hugging_face(folder, workers, mixed, capsys):
    datasets = needs("datasets")
    x, y = Augmented(44).x, Augmented(44).y

    def make():
        data = datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()})
        stream = data.to_iterable_dataset(num_shards=4).with_format("torch")
        return stream.shuffle(seed=3, buffer_size=10) if mixed else stream

    def pairs(samples):
        return torch.stack([sample["x"] for sample in samples]), torch.stack(
            [sample["label"] for sample in samples]
        )

    def stream():
        return torch.utils.data.DataLoader(make(), 9, collate_fn=pairs, num_workers=workers)

    output, plan = check_with_output(folder, capsys, stream, stop_at=8)
    if mixed:  # "examples from shuffle buffers are lost when resuming", its documentation says
        assert "continues with others" in plan.reason("data.resume")
    else:
        again = ", reading 9 samples again" if workers == 2 else ""
        assert f"the stream by its own state{again}.\n" in output


def nodes_of(sample, *, threads=False):
    """Build nodes over samples, with prefetching threads if asked."""
    nodes = needs("torchdata.nodes")

    def read(index):
        READ[index] += 1
        return sample(index)

    def make():
        order = nodes.IterableWrapper(range(44))
        if not threads:
            return nodes.Loader(nodes.Mapper(order, read))
        mapped = nodes.ParallelMapper(order, read, num_workers=2, method="thread")
        return nodes.Loader(nodes.Prefetcher(mapped, prefetch_factor=2))

    return make


def stored(index):
    data = Augmented(44)
    return data.x[index], data.y[index]


def stateful_loader(workers):
    loader = needs("torchdata.stateful_dataloader").StatefulDataLoader
    return loader(Counted(), 9, num_workers=workers)


OF_TORCHDATA = {
    "nodes": lambda: nodes_of(stored),
    "nodes with threads": lambda: nodes_of(stored, threads=True),
    "a loader": lambda: stateful_loader(0),
    "a loader with workers": lambda: stateful_loader(2),
}
OF_ITS_OWN = [
    pytest.mark.slow("needs torchdata"),
    # StatefulDataLoader calls a function of torch that is deprecated.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    # torchdata's threads, released before they start.
    pytest.mark.filterwarnings("ignore:Exception ignored in.*_ParallelMapperIter"),
]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=OF_ITS_OWN) for kind in OF_TORCHDATA])
def test_torchdata_resumes_within_an_epoch(folder, kind, capsys):
    output, plan = check_with_output(folder, capsys, OF_TORCHDATA[kind], stop_at=8)
    again = r", reading \d+ samples again" if kind == "a loader with workers" else ""
    assert re.search(rf"the stream by its own state{again}\.\n", output)
    assert plan.data_resume == "by its own state"


@pytest.mark.slow("needs torchdata")
def test_torchdata_nodes_that_draw_are_read_again(folder, capsys):
    # On resume torchdata reads one sample ahead, before its position is seeded.
    def make():
        return nodes_of(Augmented(44).__getitem__)

    _, plan = check_with_output(folder, capsys, make, stop_at=8)
    assert "Loader continues with others" in plan.reason("data.resume")
