import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from surestep.base.errors import DataError
from surestep.engine.data.dataloader import check_no_sampler, loader_settings
from surestep.engine.data.dataset import count_samples, dataset_of, in_memory, is_mixture
from tests import tiny
from tests.engine.data.streams import Unsized

X, Y = tiny.data(11)


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor(float(index)), index * index


def test_stream_in_a_mixture_is_rejected():
    with pytest.raises(
        DataError, match=r"train\['b'\] is a stream, and datasets are mixed by the positions"
    ):
        dataset_of({"a": Squares(), "b": Unsized()}, "train")


@pytest.mark.parametrize(
    "make", [lambda x: TensorDataset(x, -x), lambda x: {"x": x, "y": -x}], ids=["tuple", "dict"]
)
def test_sample_of_a_subset_in_memory_is_that_of_its_index(make):
    data = make(torch.arange(6.0))
    few = in_memory(Subset(data if isinstance(data, Dataset) else in_memory(data), [4, 1]))
    samples = [few[0], few[1]]
    values = [list(s.values()) if isinstance(s, dict) else list(s) for s in samples]
    assert values == [[4.0, -4.0], [1.0, -1.0]]


def test_indices_of_subsets_in_memory_are_those_of_python():
    nested = Subset(Subset(TensorDataset(torch.arange(10)), [-1, 4, 7, 0]), [-1, 0, -2, 1])
    memory = in_memory(nested)
    assert memory.index.tolist() == [0, 9, 7, 4]
    assert [memory[at] for at in range(4)] == [nested[at] for at in range(4)]


def test_dataset_subclass_with_its_own_getitem_is_not_sliced():
    class Doubled(TensorDataset):
        def __getitem__(self, index):
            return tuple(2 * each for each in super().__getitem__(index))

    class Negated(Subset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return -x, y

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    assert in_memory(Doubled(X, Y)) is None
    assert in_memory(Negated(TensorDataset(X, Y), [0, 1])) is None


@pytest.mark.parametrize("data", [Squares(), [(X, Y)], (X, "text"), ()])
def test_data_that_is_not_tensors_is_not_sliced(data):
    assert in_memory(data) is None


@pytest.mark.parametrize("data", [None, 3])
def test_object_that_is_not_a_dataset_is_rejected(data):
    with pytest.raises(DataError, match=r"The val data is a \w+, which has no samples\. Give a"):
        dataset_of(data, "val")


@pytest.mark.parametrize(
    "data",
    [(X[:0], Y[:0]), [], TensorDataset(X[:0], Y[:0]), Subset(Squares(), []), {"x": X[:0]}],
    ids=["tensors", "list", "TensorDataset", "Subset", "dict"],
)
def test_empty_data_is_rejected(data):
    with pytest.raises(DataError, match="The train data is empty"):
        dataset_of(data, "train")


def test_settings_of_a_dataloader_are_read():
    loader = DataLoader(Squares(), 5, shuffle=True, drop_last=True, num_workers=2)
    assert loader_settings(loader) == {
        **{"batch_size": 5, "shuffle": True, "drop_last": True, "num_workers": 2},
        **{"pin_memory": False, "persistent_workers": False, "prefetch_factor": 2},
    }
    assert loader_settings(DataLoader(Squares()))["shuffle"] is False
    assert loader_settings(Squares()) is None


def test_dataloader_with_a_custom_sampler_has_no_shuffle_setting():
    loader = DataLoader(Squares(), 5, sampler=torch.utils.data.SubsetRandomSampler([1, 2]))
    assert loader_settings(loader)["shuffle"] is None
    with pytest.raises(DataError, match=r"The DataLoader of the val data has a custom sampler"):
        check_no_sampler(loader, "val")
    check_no_sampler(DataLoader(Squares(), 5, shuffle=True), "val")


def test_dataloader_without_batches_is_rejected():
    with pytest.raises(DataError, match=r"batch_size=None, so it makes no batches\. If "):
        tiny.plan({"train": DataLoader(Squares(), batch_size=None)})


def test_several_datasets_are_concatenated():
    data = {"tensors": (X, Y), "rows": Squares(), "named": {"a": X[:2], "b": Y[:2]}}
    whole = dataset_of(data, "train")
    assert len(whole) == count_samples(data, "train") == len(X) + 10 + 2
    assert torch.equal(whole[3][0], X[3])
    assert whole[len(X) + 4][1] == 16
    assert torch.equal(whole[-1]["a"], X[1])
    assert is_mixture(data)
    assert not is_mixture({"x": X, "y": Y})


def test_dataloader_in_a_mixture_is_rejected():
    with pytest.raises(DataError, match=r"train\['a'\] is a DataLoader, .* Give a dataset"):
        dataset_of({"a": DataLoader(Squares())}, "train")


def test_dataloader_options_without_a_plan_option_are_preserved():
    loader = DataLoader(Squares(), num_workers=1, timeout=7, worker_init_fn=print)
    source = tiny.train_loader({"train": loader}, batch_size=None).source
    assert source._loader.timeout == 7
    assert source._loader.worker_init_fn.args == (print,)
