"""Padding that counts is found by collating fewer samples of the first batch."""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

import surestep
from surestep.base.errors import TaskError
from tests import tiny

G = torch.Generator().manual_seed(0)
ROWS = [
    (torch.randn(length, 4, generator=G), torch.randint(1, 4, (length,), generator=G))
    for length in (2 + row % 6 for row in range(24))
]


def collate_with(value):
    """Return a function that pads inputs with 0 and targets with a value."""

    def collate(samples):
        inputs, targets = zip(*samples, strict=True)
        return pad_sequence(inputs, True), pad_sequence(targets, True, value)

    return collate


def mean(outputs, targets, **options):
    return functional.cross_entropy(outputs.transpose(1, 2), targets, **options)


def without_zeros(outputs, targets):
    return mean(outputs, targets, ignore_index=0)


def of_samples(outputs, targets):
    """Return the mean over samples of the mean over all positions."""
    return mean(outputs, targets, reduction="none").mean(1).mean()


class Last(nn.GRU):
    """Returns the scores of the last position, which may be padding."""

    def forward(self, x):
        return super().forward(x)[0][:, -1]


def prepare(folder, loss, value, model=None, **parts):
    torch.manual_seed(0)
    usual = {"model": model or nn.Linear(4, 5), "loss": loss, "train": ROWS}
    with tiny.prepare(folder, usual | {"collate_fn": collate_with(value)} | parts) as session:
        return [row.reason for row in session.plan.decisions if row.option == "not_checked"]


COUNTS = r"Task\(items=lambda batch: int\(\(batch\[1\] != 0\)\.sum\(\)\)\)"


def test_items_that_count_padding_are_rejected_with_the_function_that_does_not(tmp_path):
    with pytest.raises(TaskError, match=rf"mean over the targets that are not 0: {COUNTS}"):
        prepare(tmp_path / "ignored", without_zeros, 0, items="tokens")
    with pytest.raises(TaskError, match=rf"padding, which is 0, counts.*{COUNTS}"):
        prepare(tmp_path / "counted", mean, 0, items="tokens")
    prepare(tmp_path / "right", mean, -100, items="tokens")
    count = {"items": lambda batch: int((batch[1] != 0).sum())}
    prepare(tmp_path / "counted right", without_zeros, 0, **count)


def test_loss_of_padding_is_rejected(tmp_path):
    with pytest.raises(TaskError, match="it is computed from padding too"):
        prepare(tmp_path, of_samples, 0)


def test_items_of_a_known_loss_that_count_padding_cause_a_warning(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), Transposed())
    with pytest.warns(UserWarning, match=rf"padding, which is 0, counts.*{COUNTS}"):
        prepare(tmp_path / "zeros", nn.CrossEntropyLoss(), 0, model)
    with pytest.warns(UserWarning, match="padding, which is 0, counts"):
        prepare(tmp_path / "apart", nn.CrossEntropyLoss(), 0, model, loss_is_separable=False)
    prepare(tmp_path / "ignored", nn.CrossEntropyLoss(), -100, model)
    prepare(tmp_path / "index", nn.CrossEntropyLoss(ignore_index=0), 0, model)


def pad_numbers(samples):
    inputs, targets = zip(*samples, strict=True)
    return pad_sequence(inputs, True), pad_sequence(targets, True)


NUMBERS = [(x, (y > 1).float().unsqueeze(1)) for x, y in ROWS]


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(),
        nn.L1Loss(),
        nn.BCEWithLogitsLoss(),
        functional.mse_loss,
        surestep.losses.binary(),
        {"a": nn.MSELoss()},
    ],
    ids=["mse", "l1", "bce", "function", "ours", "named"],
)
def test_padded_numbers_of_a_known_loss_cause_a_warning(tmp_path, loss):
    def inputs(batch):
        x, targets = batch
        return (x,), {"a": targets}

    torch.manual_seed(0)
    parts = {"collate_fn": pad_numbers, "train": NUMBERS}
    model = nn.Linear(4, 1)
    if isinstance(loss, dict):
        model, parts = Named(model), parts | {"inputs": inputs}
    text = r"8 samples have .* items .* padding, which is 0, counts.*Leave padding out"
    with pytest.warns(UserWarning, match=text) as caught:
        prepare(tmp_path / "padded", loss, None, model, **parts)
    assert not any("-100" in str(one.message) for one in caught)  # no loss of numbers ignores it
    prepare(tmp_path / "even", loss, None, model, **(parts | {"train": NUMBERS[::6]}))


class Named(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return {"a": self.model(x)}


class Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


def first_of(outputs, targets):
    return functional.cross_entropy(outputs, targets[:, 0])


def test_model_that_reads_padding_causes_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="what the model returns depends on the padding"):
        prepare(tmp_path, first_of, -100, Last(4, 5, batch_first=True))


def test_padding_is_not_checked_if_collating_draws_random_numbers(tmp_path):
    def masked(samples):
        inputs, targets = collate_with(-100)(samples)
        return inputs, targets.masked_fill(torch.rand(targets.shape) < 0.3, -100)

    note = "the padding of loss: collate_fn draws random numbers"
    found = prepare(tmp_path / "own", mean, 0, items="tokens", collate_fn=masked)
    assert note in found[0]
    model = nn.Sequential(nn.Linear(4, 5), Transposed())
    assert prepare(tmp_path / "known", nn.CrossEntropyLoss(), 0, model, collate_fn=masked) == [note]


class LoadedByWorkers(torch.utils.data.Dataset):
    """Fails in the process that trains, like one that opens its file in the first to load."""

    def __init__(self):
        self.main = os.getpid()

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        assert os.getpid() != self.main
        return ROWS[index]


@pytest.mark.slow("starts workers")
def test_samples_are_collated_again_where_samples_are_loaded(tmp_path):
    parts = {"train": LoadedByWorkers(), "items": "tokens"}
    config = {"data": {"num_workers": 1}, "doctor": {"check_data": "off"}}
    usual = {"model": nn.Linear(4, 5), "loss": mean, "collate_fn": collate_with(-100)}
    tiny.prepare(tmp_path / "right", usual | parts, **config).close()
    usual["collate_fn"] = collate_with(0)
    with pytest.raises(TaskError, match="padding, which is 0, counts"):
        tiny.prepare(tmp_path / "wrong", usual | parts, **config)
