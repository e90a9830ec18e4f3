"""Which collate function is used: the DataLoader's own for its split, then the Task's."""

from contextlib import closing

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

import surestep
from surestep.base.errors import DataError, TaskError
from surestep.engine.data.make_source import dataset_fingerprint, describe_randomness, is_in_memory
from surestep.engine.data.target_stats import read_targets
from surestep.engine.evaluate.predict import make_predict_loader
from surestep.trainer.planning import plan_task
from surestep.trainer.review.data_case import _read_stream
from tests import tiny

torch.manual_seed(0)
X, Y = torch.randn(40, 4), torch.randint(0, 2, (40,))
DATA = TensorDataset(X, Y)


def plain(samples):
    return default_collate(samples)


def doubled(samples):
    x, y = default_collate(samples)
    return 2 * x, y


class Stream(IterableDataset):
    """The samples of the data, one after the other."""

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def a_task(**parts):
    usual = {"train": DATA, "val": DATA, "collate_fn": doubled}
    torch.manual_seed(1)
    return surestep.Task(nn.Linear(4, 2), nn.CrossEntropyLoss(), **{**usual, **parts})


def config():
    return surestep.Config(
        max_steps=1,
        batch_size=8,
        optim={"name": "sgd", "lr": 0.1},
        schedule="constant",
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )


def used(task, split="val"):
    """Return the factor on the inputs of a split, by the loss that is measured."""
    with surestep.prepare(task, config(), run=None) as session, torch.no_grad():
        measured = session.evaluate(split)[f"{split}/loss"]
        for factor in (1, 2):
            expected = nn.functional.cross_entropy(session.model(factor * X), Y)
            if measured == pytest.approx(float(expected), rel=1e-5):
                return factor
    raise AssertionError("of neither collate function")


@pytest.mark.parametrize("data", [DATA, Stream()], ids=["map", "stream"])
def test_own_function_of_a_dataloader_is_used_for_its_split(data):
    own = DataLoader(data, 8, collate_fn=plain)
    assert used(a_task(val=own)) == 1
    assert used(a_task(test=own), "test") == 1
    assert used(a_task(test=own), "val") == 2
    assert used(a_task(train=own)) == 2


def test_default_of_a_dataloader_leaves_that_of_the_task():
    assert used(a_task(val=DataLoader(DATA, 8))) == 2
    assert used(a_task(val=DataLoader(DATA, 8, collate_fn=default_collate))) == 2
    assert used(a_task(val=DataLoader(DATA, 8), collate_fn=None)) == 1


def test_own_function_of_the_training_dataloader_is_used_to_train():
    own = DataLoader(DATA, 8, collate_fn=plain)
    weights = []
    for train, collate in ((own, doubled), (DATA, plain), (DATA, doubled)):
        task = a_task(train=train, collate_fn=collate, val=None)
        with surestep.prepare(task, config(), run=None) as session:
            for _ in session.steps():
                pass
            weights.append(session.model.weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_all_that_reads_data_finds_the_same_function():
    own = DataLoader(DATA, 8, collate_fn=plain)
    task, default = a_task(train=own, val=own), a_task(collate_fn=None)
    plan = plan_task(task, config()).plan
    assert not is_in_memory(own, task)
    assert "collate_fn" in describe_randomness(task)[1]
    digests = [
        dataset_fingerprint(DATA, "val", task=a_task(collate_fn=f), plan=plan)
        for f in (plain, doubled)
    ]
    assert dataset_fingerprint(own, "val", task=task, plan=plan) == digests[0] != digests[1]
    with closing(make_predict_loader(own, "val", task=task, plan=plan)) as loader:
        _, micro = loader.first()
    assert torch.equal(micro.args[0], X[: len(micro.args[0])])
    stream = DataLoader(Stream(), 8, collate_fn=plain)
    split = _read_stream(stream, "val", task, plan, 60.0)
    assert torch.equal(split.inputs[0], X)
    assert is_in_memory(DATA, default)


def test_targets_that_class_weights_are_counted_from_are_collated():
    def swap(samples):
        x, y = default_collate(samples)
        return x, (y == 0) & (x[:, 0] > 0)

    expected = (Y == 0) & (X[:, 0] > 0)
    loader = DataLoader(DATA, 8, collate_fn=swap)
    for task in (a_task(train=(X, Y), collate_fn=swap), a_task(train=loader)):
        assert torch.equal(torch.cat(list(read_targets(task, 0, "a loss"))), expected)


class Gaps(Dataset):
    """A dataset that has no sample at some indices."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return None if index % 4 == 3 else (X[index], Y[index])


def without_gaps(samples):
    return default_collate([sample for sample in samples if sample is not None])


LEAVE_OUT = "If collate_fn leaves samples out, leave them out of the data instead"


def share_right(outputs, targets):
    return float((outputs.argmax(-1) == targets).float().mean())


@pytest.mark.parametrize(
    "parts",
    [
        {"metrics": {"whole": surestep.whole_set(share_right)}, "val": Gaps()},
        {"batch_transform": surestep.batch_transforms.mixup(0.2, classes=3)},
    ],
    ids=["metric of a whole set", "batch_transform"],
)
def test_rows_that_collate_fn_leaves_out_are_named_where_each_sample_needs_one(tmp_path, parts):
    with pytest.raises(TaskError, match=LEAVE_OUT):
        tiny.fit(tmp_path, {"train": Gaps(), "collate_fn": without_gaps, **parts})


@pytest.mark.parametrize("workers", [0, 1])
def test_micro_batch_of_which_collate_fn_leaves_nothing_is_named(tmp_path, workers):
    parts = {"train": Gaps(), "collate_fn": without_gaps}
    with pytest.raises(DataError, match=rf"Samples \d+ of .*IndexError.*{LEAVE_OUT}"):
        tiny.fit(tmp_path, parts, micro_batch_size=1, data={"num_workers": workers})


def test_rows_that_collate_fn_leaves_out_are_named_in_predictions(tmp_path):
    parts = {"train": Gaps(), "collate_fn": without_gaps}
    with tiny.prepare(tmp_path, parts) as session, pytest.raises(TaskError, match=LEAVE_OUT):
        session.predict("train")


def test_samples_that_are_left_out_of_the_data_instead_are_predicted(tmp_path):
    kept = [index for index in range(len(X)) if index % 4 != 3]
    parts = {"train": Gaps(), "test": Subset(Gaps(), kept)}
    excluded = [index for index in range(len(X)) if index % 4 == 3]
    with tiny.prepare(tmp_path, parts, exclude_samples=excluded) as session:
        assert len(list(session.steps())) == 8  # two epochs of 30 samples
        assert session.predict("test").samples == len(kept)
