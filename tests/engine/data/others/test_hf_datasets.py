"""Unmodified Hugging Face `datasets`: map-style and as streams."""

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate

from surestep.base.errors import DataError
from tests import tiny
from tests.engine.data.streams import X, Y
from tests.needs import needs

datasets = needs("datasets")


class Net(nn.Module):
    """A model with a single input called x."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(tiny.FEATURES, tiny.CLASSES)

    def forward(self, x):
        return self.linear(x)


def placed():
    return datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()})


def streamed(shards=2):
    return placed().to_iterable_dataset(num_shards=shards).with_format("torch")


def batches(train, epoch=0, start=0, **said):
    loader = tiny.train_loader({"train": train, "loss": lambda o, t: o.mean()}, **said)
    try:
        return list(loader.batches(epoch, start))
    finally:
        loader.close()


def inputs_of(found):
    return torch.cat([micro.kwargs["x"] for batch in found for micro in batch.micro_batches])


def test_map_style_hf_dataset_is_shuffled_like_tensors():
    expected = batches({"x": X, "label": Y})
    found = batches(placed().with_format("torch"))
    assert torch.equal(inputs_of(found), inputs_of(expected))
    assert torch.equal(found[0].micro_batches[0].targets, expected[0].micro_batches[0].targets)


def test_python_columns_of_an_hf_dataset_go_through_collate_fn():
    def collate(samples):
        return default_collate([(torch.tensor(each["x"]), each["label"]) for each in samples])

    parts = {"train": placed(), "collate_fn": collate, "loss": lambda o, t: o.mean()}
    batch = next(tiny.train_loader(parts).batches(0))
    expected = next(tiny.train_loader({"train": (X, Y)}).batches(0))
    assert torch.equal(batch.micro_batches[0].args[0], expected.micro_batches[0].args[0])


def test_hf_stream_is_read_in_its_order():
    assert torch.equal(inputs_of(batches(streamed(), max_steps=6)), X)


def test_hf_stream_distributes_its_shards_to_the_workers():
    found = batches(streamed(), max_steps=6, data={"num_workers": 2})
    assert [batch.end for batch in found] == [8, 16, 24, 32, 40, 44]
    assert sorted(inputs_of(found).tolist()) == sorted(X.tolist())


def test_fewer_shards_than_workers_are_rejected():
    with pytest.raises(DataError, match=r"it has too few shards\. Use data\.num_workers=1"):
        batches(streamed(shards=1), max_steps=6, data={"num_workers": 2})


def test_shuffling_of_an_hf_stream_gets_the_epoch_and_can_resume():
    mixed = streamed().shuffle(seed=3, buffer_size=10)
    first, second, again = (inputs_of(batches(mixed, epoch, max_steps=6)) for epoch in (0, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.equal(inputs_of(batches(mixed, 1, start=16, max_steps=6)), second[16:])


def test_run_over_an_hf_stream_equals_a_run_over_tensors(tmp_path):
    def weights(train, name):
        model = Net()
        said = {"max_steps": 9, **({} if name == "stream" else {"data": {"shuffle": False}})}
        tiny.fit(tmp_path / name, {"model": model, "train": train, "val": train}, **said)
        return tiny.weights(model)

    assert torch.equal(weights(streamed(), "stream"), weights({"x": X, "label": Y}, "tensors"))
