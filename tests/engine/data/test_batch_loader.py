import os
import signal
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, get_worker_info

from surestep.base.errors import ConfigError, DataError, WorkerError
from surestep.engine.data.batch_loader import make_loader
from surestep.engine.data.sources import InMemory, MapStyleSource
from surestep.engine.plan.batching import LISTED, BatchLayout
from tests import tiny

X, Y = tiny.data()


class Rows(Dataset):
    """A map-style dataset of the usual samples."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return X[index], Y[index]


class Pids(Rows):
    """Targets are the pid of the worker that loads them, or 0."""

    def __getitem__(self, index):
        return X[index], os.getpid() if get_worker_info() else 0


def collate_double(samples):
    x, y = torch.utils.data.default_collate(samples)
    return 2 * x, y


def inputs_of(batches):
    return torch.cat([micro.args[0] for batch in batches for micro in batch.micro_batches])


def batches(parts, epoch=0, start=0, **said):
    return list(
        tiny.train_loader({"loss": lambda o, t: o.mean(), **parts}, **said).batches(epoch, start)
    )


@pytest.mark.parametrize(
    "train",
    [
        Rows(),
        TensorDataset(X, Y),
        Subset(Rows(), range(20)),
        DataLoader(Rows(), 8, shuffle=True),
        DataLoader(Rows(), 8, shuffle=True, num_workers=2, persistent_workers=True),
        DataLoader(Rows(), 8, shuffle=True, num_workers=1, multiprocessing_context="spawn"),
        DataLoader(TensorDataset(X, Y), 8, shuffle=True, num_workers=1),
    ],
    ids=["rows", "tensors", "subset", "loader", "workers", "spawn", "tensors by workers"],
)
def test_any_type_of_data_gives_the_same_samples(train):
    expected = inputs_of(batches({"train": (X, Y)}, epoch=1, batch_size=8))
    found = batches({"train": train}, epoch=1, batch_size=8)
    assert torch.equal(inputs_of(found), expected)


def test_resuming_at_a_position_gives_the_same_batches():
    whole, rest = (batches({"train": Rows()}, 1, start, micro_batch_size=3) for start in (0, 8))
    assert torch.equal(inputs_of(rest), inputs_of(whole)[8:])
    assert [(each.position, each.end) for each in rest] == [(8, 16), (16, 20)]


def test_start_of_an_epoch_does_not_depend_on_its_size(monkeypatch):
    class Many(Rows):
        def __len__(self):
            return 10**12

        def __getitem__(self, index):
            return super().__getitem__(index % len(Y))

    cuts, cut = iter(range(LISTED + 1)), BatchLayout.micro_batches
    monkeypatch.setattr(BatchLayout, "micro_batches", lambda *batch: [next(cuts), cut(*batch)][1])
    many = {"train": Many(), "loss": lambda o, t: o.mean()}
    found = tiny.train_loader(many, batch_size=8, data={"shuffle": False})
    assert next(found.batches(0, 8 * 10**10)).position == 8 * 10**10


def test_epoch_is_complete_for_any_number_of_listed_batches(monkeypatch):
    whole = batches({"train": Rows()}, micro_batch_size=3)
    monkeypatch.setattr("surestep.engine.plan.batching.LISTED", 2)
    again = batches({"train": Rows()}, micro_batch_size=3)
    assert [(each.position, each.ends_epoch) for each in again] == [(0, 0), (8, 0), (16, 1)]
    assert torch.equal(inputs_of(again), inputs_of(whole))


def test_batch_has_its_items_position_and_whether_it_ends_the_epoch():
    found = batches({"train": (X, Y)}, epoch=3, micro_batch_size=3)
    assert [(b.epoch, b.position, b.end, b.ends_epoch) for b in found] == [
        *((3, 0, 8, False), (3, 8, 16, False), (3, 16, 20, True))
    ]
    assert [[micro.samples for micro in batch.micro_batches] for batch in found] == [
        *([3, 3, 2], [3, 3, 2], [3, 1])
    ]
    assert [micro.position for micro in found[1].micro_batches] == [8, 11, 14]
    assert [batch.items for batch in found] == [8, 8, 4]


@pytest.mark.parametrize(
    "train", [(X, Y), TensorDataset(X, Y), Rows()], ids=["tuple", "TensorDataset", "rows"]
)
def test_collate_fn_gets_a_list_of_samples(train):
    expected = 2 * inputs_of(batches({"train": (X, Y)}))
    found = batches({"train": train, "collate_fn": collate_double})
    assert torch.equal(inputs_of(found), expected)


def test_collate_fn_gets_samples_of_a_dict_as_dicts():
    def collate(samples):
        return torch.stack([each["x"] for each in samples]), torch.stack([s["y"] for s in samples])

    found = batches({"train": {"x": X, "y": Y}, "collate_fn": collate})
    assert torch.equal(inputs_of(found), inputs_of(batches({"train": (X, Y)})))


def test_tensors_without_collate_fn_are_sliced_in_memory():
    assert isinstance(tiny.train_loader({}).source, InMemory)
    assert isinstance(tiny.train_loader({"train": Rows()}).source, MapStyleSource)


def test_collate_fn_of_a_dataloader_is_used():
    loader = DataLoader(TensorDataset(X, Y), 8, shuffle=True, collate_fn=collate_double)
    expected = 2 * inputs_of(batches({"train": (X, Y)}))
    assert torch.equal(inputs_of(batches({"train": loader}, batch_size=8)), expected)


def test_batch_size_of_a_dataloader_is_used_and_a_different_one_rejected():
    loader = DataLoader(Rows(), batch_size=5)
    assert tiny.train_loader({"train": loader}, batch_size=None).layout.batch_size == 5
    with pytest.raises(
        ConfigError, match=r"batch_size=8, but .* is a DataLoader with batch_size=5"
    ):
        tiny.train_loader({"train": loader}, batch_size=8)


def test_workers_ignore_sigint_and_continue_loading():
    train = DataLoader(Pids(), 2, num_workers=1, prefetch_factor=1)
    loading = tiny.train_loader({"train": train}, batch_size=None).batches(0)
    worker = int(next(loading).micro_batches[0].targets[0])
    os.kill(worker, signal.SIGINT)
    rest = [int(batch.micro_batches[0].targets[0]) for batch in loading]
    assert rest == [worker] * 9


def test_batches_can_be_dicts():
    parts = {"train": {"input": X, "y": Y}, "inputs": lambda batch: (batch["input"], batch["y"])}
    (first, *_) = batches(parts)[0].micro_batches
    assert first.args[0].shape == (8, 4)
    (first, *_) = batches({"train": {"input": X, "labels": Y}})[0].micro_batches
    assert first.args == ()
    assert first.kwargs["input"].shape == (8, 4)


def test_several_inputs_are_passed_to_the_model_in_order():
    (first, *_) = batches({"train": (X, 2 * X, Y)})[0].micro_batches
    assert torch.equal(first.args[1], 2 * first.args[0])


@pytest.mark.parametrize("weight", [[0.5, 1.5, 1.0], [1.0, 1.0, 1.0]], ids=["balanced", "even"])
def test_weighted_items_are_counted_per_batch_even_if_they_sum_to_samples(weight):
    y = torch.tensor([0, 1, 2, 2, 2, 0, 1, 2, 0, 1, 0, 1])
    weight = torch.tensor(weight)
    assert float(weight[y].sum()) == len(y)
    loss = nn.CrossEntropyLoss(weight=weight)
    found = batches({"train": (X[:12], y), "loss": loss}, batch_size=3, data={"shuffle": False})
    assert [batch.items for batch in found] == [float(weight[each].sum()) for each in y.split(3)]


def test_masked_targets_do_not_count_as_items():
    y = Y.clone()
    y[:3] = -100
    found = batches({"train": (X, y), "loss": nn.CrossEntropyLoss()}, data={"shuffle": False})
    assert [batch.items for batch in found] == [5, 8, 4]


def test_sliced_batch_does_not_share_memory_with_the_data():
    kept = X.clone()
    for batch in batches({"train": (X, Y)}, data={"shuffle": False}):
        batch.micro_batches[0].args[0].zero_()
    spoiled = not torch.equal(X, kept)
    X.copy_(kept)
    assert not spoiled


class Sample(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_named_tuple_sample_is_handled_as_a_tuple():
    class Named(Rows):
        def __getitem__(self, index):
            return Sample(*super().__getitem__(index))

    assert torch.equal(
        inputs_of(batches({"train": Named()})), inputs_of(batches({"train": (X, Y)}))
    )


def val_loader(val, **said):
    planned = tiny.plan({"val": val}, **said)
    parts = {"task": planned.task, "loss": planned.loss, "plan": planned.plan}
    return make_loader(planned.task.val, "val", **parts)


def test_training_data_is_measured_on_all_of_it():
    planned = tiny.plan(limit_train_batches=1, data={"shuffle": True})
    parts = {"task": planned.task, "loss": planned.loss, "plan": planned.plan}
    loader = make_loader(planned.task.train, "train", **parts)
    assert torch.equal(inputs_of(loader.batches(0)), X)
    assert len(inputs_of(tiny.train_loader({}, limit_train_batches=1).batches(0))) == 8


def test_validation_is_in_order_and_ignores_drop_last():
    found = list(val_loader(Rows(), data={"drop_last": True}).batches(0))
    assert torch.equal(inputs_of(found), X)


def test_validation_dataloader_with_a_custom_sampler_is_rejected():
    loader = DataLoader(Rows(), 4, sampler=torch.utils.data.SubsetRandomSampler([1, 2, 3]))
    with pytest.raises(DataError, match="custom sampler"):
        val_loader(loader)


def test_validation_dataloader_can_have_its_own_workers():
    loader = DataLoader(Rows(), 4, num_workers=1, multiprocessing_context="spawn")
    assert isinstance(val_loader(loader).source, MapStyleSource)


def test_validation_batch_size_that_differs_from_the_loader_is_rejected():
    loader = DataLoader(Rows(), 4)
    with pytest.raises(ConfigError, match=r"validation\.batch_size=5"):
        val_loader(loader, validation={"batch_size": 5})


def hide_by_torch(targets, rows):
    targets[rows] = -100


def hide_by_numpy(targets, rows):
    targets.numpy()[rows] = -100


def hide_by_data(targets, rows):
    targets.data[rows] = -100


def hide_elsewhere(targets, rows):
    """Assign new memory to the tensor."""
    targets.data = torch.where(torch.isin(torch.arange(len(targets)), torch.tensor(rows)), -100, 1)


@pytest.mark.parametrize("hide", [hide_by_torch, hide_by_numpy, hide_by_data, hide_elsewhere])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("chosen", [None, list(range(4, 24))])
def test_targets_changed_in_place_are_counted_again(hide, shuffle, chosen):
    x, y = tiny.data(24)
    data = TensorDataset(x, y)
    data = data if chosen is None else Subset(data, chosen)
    training = tiny.train_loader({"train": data}, batch_size=8, data={"shuffle": shuffle})
    assert [batch.items for batch in training.batches(0)] == [8] * (len(data) // 8) + (
        [len(data) % 8] if len(data) % 8 else []
    )
    batches = training.batches(1)
    first = next(batches)
    hide(y, list(range(4, 20)))
    later = list(batches)
    assert first.items == 8
    for batch in later:
        kept = sum(int((micro.targets != -100).sum()) for micro in batch.micro_batches)
        assert batch.items == kept
    assert sum(batch.items for batch in training.batches(2)) == (8 if chosen is None else 4)


def test_arrays_changed_in_place_are_counted_again():
    x, y = (each.numpy() for each in tiny.data(24))
    training = tiny.train_loader({"train": (x, y)}, batch_size=24)
    y[:10] = -100
    assert [batch.items for batch in training.batches(0)] == [14]


def test_step_divides_by_the_targets_that_remain_after_masking(tmp_path):
    x, y = tiny.data(40)
    net = tiny.model()
    parts = {"model": net, "train": (x, y)}
    with tiny.prepare(tmp_path, parts, batch_size=40) as session:
        y[16:] = -100
        with torch.no_grad():
            expected = torch.nn.functional.cross_entropy(net(x[:16]), y[:16])
        result = next(session.steps())
    assert result.items == 16
    torch.testing.assert_close(result.loss, expected)


def test_items_are_counted_each_time_if_ignore_index_is_a_class():
    x, y = tiny.data(24)
    y = y % 2 + 1
    loss = torch.nn.CrossEntropyLoss(ignore_index=0)
    training = tiny.train_loader({"train": (x, y), "loss": loss}, batch_size=24)
    y.numpy()[:5] = 0
    assert [batch.items for batch in training.batches(0)] == [19]


def test_class_probabilities_changed_in_place_are_counted_by_shape():
    x, y = tiny.data(24)
    shares = torch.nn.functional.one_hot(y, 3).float()
    training = tiny.train_loader({"train": (x, shares)}, batch_size=8)
    shares.fill_(1 / 3)
    assert [batch.items for batch in training.batches(0)] == [8, 8, 8]


@pytest.mark.parametrize("answers", [[True], [True, True], [False]])
def test_batches_continue_after_the_last_one_when_a_worker_died(monkeypatch, answers):
    """`retry` returns whether they continue, each time."""
    loader, asked = tiny.train_loader({"train": Rows()}, data={"shuffle": False}), []
    loader.retry = lambda error: asked.append(str(error)) or answers[len(asked) - 1]
    read, deaths = loader._read, iter(answers)

    def dying(epoch, start):
        for batch in read(epoch, start):
            yield batch
            if next(deaths, None) is not None:
                raise WorkerError("A data worker died.")

    monkeypatch.setattr(loader, "_read", dying)
    found = []
    if False in answers:
        with pytest.raises(WorkerError, match="A data worker died"):
            found += loader.batches(0)
    else:
        found += loader.batches(0)
        assert [(batch.position, batch.end) for batch in found] == [(0, 8), (8, 16), (16, 20)]
        assert torch.equal(inputs_of(found), X)
    assert len(asked) == len(answers)


def test_custom_batch_is_counted_by_the_options_that_the_loss_has_now():
    loss = nn.CrossEntropyLoss()
    loader = tiny.train_loader({"loss": loss})
    for ignored in (-100, 1, 2):
        loss.ignore_index = ignored
        batch = loader.make_batch([(X[:9], Y[:9]), (X[9:], Y[9:])], (0, 0, 0), 1)
        assert batch.items == int(Y.ne(ignored).sum())
        places = [(micro.position, micro.samples) for micro in batch.micro_batches]
        assert places == [(0, 9), (9, len(Y) - 9)]
        assert loader.loss.module.ignore_index == ignored


def test_random_inputs_of_the_task_depend_on_the_epoch_and_the_position():
    def noisy(batch):
        return batch[0] + torch.rand(()), batch[1]

    def noise(epoch, start=0, size=4, **said):
        said = {"batch_size": 8, "data": {"shuffle": False}, "micro_batch_size": size, **said}
        loader = tiny.train_loader({"inputs": noisy}, **said)
        batches = list(loader.batches(epoch, start))
        read = torch.cat([micro.args[0] for batch in batches for micro in batch.micro_batches])
        return (read - X[start:])[::4, 0].tolist()

    first = noise(0)
    assert noise(0) == first
    assert noise(0, start=8) == first[2:]
    assert len({*first, *noise(1), *noise(0, seed=1)}) == 3 * len(first)
