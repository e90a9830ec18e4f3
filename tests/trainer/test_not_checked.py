"""The Plan lists what could not be checked before the first step."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from surestep.engine.plan.not_checked import not_checked
from surestep.trainer import run_identity
from tests import tiny

X, Y = tiny.data(9)
ROWS = [(x, y.repeat(1 + row % 3)) for row, (x, y) in enumerate(zip(X, Y, strict=True))]


@pytest.fixture(autouse=True)
def forget_modules_of_other_tests(monkeypatch):
    """The files of modules that they imported may be deleted, and then cannot be checked."""
    monkeypatch.setattr(run_identity, "_user_files", dict)


def join(samples):
    x, labels = zip(*samples, strict=True)
    return torch.stack(x), torch.cat(labels)


def test_metric_of_joined_targets_is_listed_as_not_checked(tmp_path):
    parts = {
        "loss": lambda outputs, labels: outputs.logsumexp(1).mean(),
        "metrics": {"largest": lambda outputs, labels: outputs.amax(1).mean()},
        **{"train": ROWS, "collate_fn": join},
    }
    with tiny.prepare(tmp_path, parts) as session:
        value, reason = next(row[1:] for row in session.plan.decisions if row[0] == "not_checked")
        assert value == ["metrics['largest']"]
        assert reason == "metrics['largest']: the targets have no row for each sample"
        assert "not_checked" in str(session.plan)
    assert {"option": "not_checked", "value": value, "reason": reason} in json.loads(
        (tmp_path / "plan.json").read_text()
    )


def test_plan_has_no_row_if_all_was_checked(tmp_path):
    not_checked("this", "nothing collects it")
    with tiny.prepare(tmp_path) as session:
        assert "not_checked" not in [option for option, *_ in session.plan.decisions]


def notes(folder, parts=None, **options):
    """Return a text for each thing that is not checked of a Task."""
    with tiny.prepare(folder, parts, **options) as session:
        rows = [row for row in session.plan.decisions if row.option == "not_checked"]
    return [text for row in rows for text in row.reason.split("; ")]


class InTraining(nn.Linear):
    def forward(self, x, targets=None):
        logits = super().forward(x)
        return logits if targets is None else {"label": functional.cross_entropy(logits, targets)}


def test_loss_in_training_is_listed_as_not_checked_without_its_items(tmp_path):
    parts = {"model": InTraining(4, 3), "loss": "model in training"}
    (found,) = notes(tmp_path / "samples", parts)
    assert found == "loss: Task(items=) does not count what its mean is over"
    assert not notes(tmp_path / "counted", parts | {"items": lambda batch: len(batch[1])})


def own(outputs, targets):
    return functional.cross_entropy(outputs, targets)


def of_all(outputs, targets):
    assert len(outputs) == 8
    return functional.cross_entropy(outputs, targets)


def noisy(outputs, targets):
    noise = torch.from_numpy(np.random.standard_normal(outputs.shape))
    return functional.cross_entropy(outputs + 0.1 * noise, targets)


def overflow(outputs, targets):
    return functional.cross_entropy(outputs, targets) + 1e400


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (of_all, "it cannot be computed for a part of the first batch"),
        (noisy, "it draws random numbers, which may hide a difference"),
        (lambda outputs, targets: 0 * outputs.sum(), "it is 0 for the first batch"),
        (overflow, "it is not finite for the first batch"),
    ],
    ids=["part", "draws", "zero", "infinite"],
)
def test_loss_that_shows_nothing_is_listed_as_not_checked(tmp_path, loss, why):
    assert notes(tmp_path, {"loss": loss}) == [f"loss: {why}"]


def test_loss_that_shows_nothing_of_padded_samples_is_listed_as_not_checked(tmp_path):
    def pad(samples):
        x, y = zip(*samples, strict=True)
        return torch.stack(x), pad_sequence(y, True, -100)

    def of_first(outputs, targets):
        assert len(outputs) != 6  # of 8 samples that are collated in two parts
        return functional.cross_entropy(outputs, targets[:, 0])

    found = notes(tmp_path, {"loss": of_first, "train": ROWS, "collate_fn": pad})
    assert found == [
        "the padding of loss: it cannot be computed for a part of the first batch",
        "loss: all comparisons would be more than 8 calls of the loss",
    ]


def test_loss_that_is_declared_as_not_separable_is_listed_as_not_checked(tmp_path):
    (found,) = notes(tmp_path, {"loss": own, "loss_is_separable": False})
    assert found == "loss: loss_is_separable=False says that its parts may differ"


def test_one_sample_is_listed_as_not_checked(tmp_path):
    parts = {
        "train": (X[:1], Y[:1]),
        "metrics": {"largest": lambda outputs, _: outputs.amax(1).mean()},
    }
    found = notes(tmp_path, parts | {"loss": own}, batch_size=1)
    assert found == [
        "loss: the first batch has one sample, which has no parts",
        "metrics['largest']: the first batch has one sample",
    ]


class Scores(nn.Linear):
    def forward(self, x):
        return super().forward(x).transpose(1, 2)


@pytest.mark.parametrize(
    ("loss", "model", "batch"),
    [
        (own, nn.Linear(4, 3), (X, Y)),
        (nn.CrossEntropyLoss(), Scores(4, 3), (X.unsqueeze(1), Y.unsqueeze(1))),
    ],
    ids=["own", "known"],
)
def test_padding_of_ready_batches_is_listed_as_not_checked(tmp_path, loss, model, batch):
    parts = {"model": model, "train": [batch]}
    (found,) = notes(tmp_path, parts | {"batched": True, "loss": loss}, batch_size=1)
    assert found == "the padding of loss: fewer samples of the first batch cannot be collated"


class Unreadable(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        raise OSError("no such disk")


def test_validation_data_that_cannot_be_read_is_listed_as_not_checked(tmp_path):
    with tiny.prepare(tmp_path, {"val": Unreadable()}) as session:
        assert "no such disk" in session.plan.reason("not_checked")


class Changing(torch.utils.data.Dataset):
    """Gives other samples when it is read again."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 9

    def __getitem__(self, index):
        self.reads += 1
        return X[index] + self.reads, Y[index]


@pytest.mark.filterwarnings("ignore:The val data gives other samples")
def test_validation_data_that_changes_is_listed_as_not_checked(tmp_path):
    with tiny.prepare(tmp_path, {"val": Changing()}) as session:
        assert "the samples of val: they differ" in session.plan.reason("not_checked")
