"""How often the checks of the first batch call a loss: they must not be felt in a short run."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from surestep.engine.checks.first_batch import check_first_batch
from surestep.engine.plan.not_checked import NotChecked
from tests import tiny

X, Y = tiny.data(64)
MOST = 8
MOST_OF_METRICS = 13


class Counted:
    """Counts the calls of a function."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


class Nested(nn.Linear):
    """Returns outputs that have no row for each sample."""

    def forward(self, x):
        return {"logits": super().forward(x), "sizes": x.mean()}


class Own(nn.Module):
    """Computes its own loss of tokens."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 5)
        self.loss = Counted(functional.cross_entropy)

    def forward(self, input_ids, labels):
        logits = self.head(self.norm(self.table(input_ids)))
        return {"loss": self.loss(logits.transpose(1, 2), labels), "logits": logits}


class InTraining(nn.Module):
    """Returns its losses in training."""

    def __init__(self, layer):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
        self.loss = Counted(functional.cross_entropy)

    def forward(self, x, targets=None):
        logits = self.net(x)
        return logits if targets is None else {"label": self.loss(logits, targets)}


def sequences():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(5, (2 + row % 6,), generator=generator) for row in range(64)]


def pad(samples):
    inputs, labels = zip(*samples, strict=True)
    return pad_sequence(inputs, True, 6), pad_sequence(labels, True, -100)


def pad_named(samples):
    return dict(zip(("input_ids", "labels"), pad(samples), strict=True))


def join(samples):
    inputs, labels = zip(*samples, strict=True)
    return torch.stack(inputs), torch.cat(labels)


TOKENS = list(zip(sequences(), sequences(), strict=True))
OF_TOKENS = {"model": nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5)), "train": TOKENS}


def of_tokens(outputs, labels):
    return functional.cross_entropy(outputs.transpose(1, 2), labels)


def of_labels(outputs, labels):
    return outputs.logsumexp(1).mean() + 0 * labels.sum()


def rejects_double(outputs, targets):
    return functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 2.0, 3.0])) * 0 + (
        functional.cross_entropy(outputs, targets)
    )


def rejects_double_of_tokens(outputs, labels):
    return of_tokens(outputs, labels) + 0 * functional.cross_entropy(
        outputs.flatten(0, 1), labels.flatten(), weight=torch.ones(5)
    )


def zero(outputs, targets):
    return 0 * outputs.sum()


def has_two_classes(outputs, targets):
    names = {0: "a", 1: "b"}
    assert [names[int(target)] for target in targets]
    return functional.cross_entropy(outputs, targets)


def unchanged(inputs, targets, generator):
    return inputs, targets


OF_LISTED = {"loss": "model in training", "items": lambda batch: len(batch[1])}
LABELLED = [(x, y.repeat(1 + row % 3)) for row, (x, y) in enumerate(zip(X, Y, strict=True))]
CASES = {
    "plain": (functional.cross_entropy, {}, {}),
    "small batch": (functional.cross_entropy, {}, {"micro_batch_size": 1}),
    "transformed": (
        functional.cross_entropy,
        {"batch_transform": unchanged},
        {},
    ),
    "rejects double": (rejects_double, {}, {}),
    "rejects double, transformed": (rejects_double, {"batch_transform": unchanged}, {}),
    "rejects double, padded": (
        rejects_double_of_tokens,
        {**OF_TOKENS, "collate_fn": pad, "items": "tokens"},
        {},
    ),
    "rejects double, padded, transformed": (
        rejects_double_of_tokens,
        {**OF_TOKENS, "collate_fn": pad, "items": "tokens", "batch_transform": unchanged},
        {},
    ),
    "zero": (zero, {}, {}),
    "fails for a class": (has_two_classes, {"train": (X, Y.clamp(max=1))}, {}),
    "nested": (
        lambda outputs, y: functional.cross_entropy(outputs["logits"], y),
        {"model": Nested(4, 3)},
        {},
    ),
    "padded": (of_tokens, {**OF_TOKENS, "collate_fn": pad, "items": "tokens"}, {}),
    "joined": (of_labels, {"train": LABELLED, "collate_fn": join}, {}),
    "own": (None, {"model": Own(), "train": TOKENS, "collate_fn": pad_named, "loss": "model"}, {}),
    "in training": (
        None,
        {"model": InTraining(nn.BatchNorm1d(8)), **OF_LISTED},
        {},
    ),
}


@pytest.mark.parametrize(("loss", "parts", "options"), CASES.values(), ids=CASES)
def test_loss_is_called_eight_times_at_most(loss, parts, options):
    assert 4 <= count_calls(loss, parts, options) <= MOST


def count_calls(loss, parts, options):
    """Return how often the checks of a first batch call a loss."""
    torch.manual_seed(0)
    given = {"train": (X, Y), "model": tiny.model(), "loss": loss and Counted(loss)} | parts
    task = tiny.task(**given)
    loader = tiny.train_loader(given, **{"batch_size": 64, **options})
    counted = task.model.loss if loss is None else given["loss"]
    check_first_batch(task.model, loader, task, autocast=torch.autocast("cpu", enabled=False))
    return counted.calls


def test_comparisons_that_would_be_more_calls_are_not_checked():
    notes = NotChecked()
    count_calls(*CASES["rejects double, padded, transformed"])
    notes.close()
    assert notes.notes == {
        "the padding of loss": "all comparisons would be more than 8 calls of the loss"
    }


def noisy(outputs, targets):
    return functional.cross_entropy(outputs + 0.1 * torch.randn_like(outputs), targets)


def noisy_of_numpy(outputs, targets):
    noise = torch.from_numpy(np.random.standard_normal(outputs.shape))
    return functional.cross_entropy(outputs + noise, targets)


def of_first(outputs, labels):
    return functional.cross_entropy(outputs, labels[:, 0])


class OwnGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def forward(self, outputs, targets):
        noise = torch.from_numpy(self.rng.standard_normal(outputs.shape))
        return functional.cross_entropy(outputs + noise, targets)


class NoisyOwn(Own):
    def forward(self, input_ids, labels):
        hidden = self.norm(self.table(input_ids))
        logits = self.head(hidden + 0.1 * torch.randn_like(hidden))
        return {"loss": self.loss(logits.transpose(1, 2), labels), "logits": logits}


class Last(nn.GRU):
    """Returns the scores of the last position, which may be padding."""

    def __init__(self):
        super().__init__(4, 5, batch_first=True)
        self.table = nn.Embedding(7, 4)

    def forward(self, x):
        return super().forward(self.table(x))[0][:, -1]


DRAWS, TOO_MANY = "it draws random numbers, which", "all comparisons would be more than 8 calls"
DRAWING = {
    "torch": (noisy, {}, {}, {}),
    "small batch": (noisy, {}, {"micro_batch_size": 1}, {}),
    "transformed": (noisy, {"batch_transform": unchanged}, {}, {}),
    "one number": (lambda o, y: functional.cross_entropy(o * (1 + random.random()), y), {}, {}, {}),
    "numpy": (noisy_of_numpy, {}, {}, {"loss": DRAWS}),
    "own generator": (OwnGenerator(), {}, {}, {"loss": DRAWS}),
    "padded": (
        lambda outputs, labels: of_tokens(outputs + 0.1 * torch.randn_like(outputs), labels),
        {**OF_TOKENS, "collate_fn": pad, "items": "tokens"},
        {},
        {"the padding of loss": DRAWS, "loss": TOO_MANY},
    ),
    "model": (noisy, {"model": nn.Sequential(tiny.model(), nn.Dropout(0.2))}, {}, {}),
    "own": (
        None,
        {"model": NoisyOwn(), "train": TOKENS, "collate_fn": pad_named, "loss": "model"},
        {},
        {"the padding of loss": DRAWS, "loss": TOO_MANY},
    ),
    "in training": (None, {"model": InTraining(nn.Dropout(0.2)), **OF_LISTED}, {}, {}),
}


@pytest.mark.parametrize(("loss", "parts", "options", "noted"), DRAWING.values(), ids=DRAWING)
def test_loss_that_draws_is_called_eight_times_at_most(loss, parts, options, noted):
    notes = NotChecked()
    assert 4 <= count_calls(loss, parts, options) <= MOST
    notes.close()
    assert notes.notes.keys() == noted.keys()
    assert all(why.startswith(noted[what]) for what, why in notes.notes.items())


@pytest.mark.parametrize("parts", [{}, {"batch_transform": unchanged}])
def test_difference_of_padding_is_measured_again(parts):
    with pytest.warns(UserWarning, match="what the model returns depends on the padding"):
        calls = count_calls(
            of_first, {**OF_TOKENS, "model": Last(), "collate_fn": pad, **parts}, {}
        )
    assert calls <= MOST + len(parts)


def test_metric_is_called_13_times_at_most():
    metric = Counted(lambda outputs, targets: (outputs.argmax(1) == targets).float().mean())
    parts = {"train": (X, Y), "model": tiny.model(), "metrics": {"hits": metric}}
    task = tiny.task(**parts)
    loader = tiny.train_loader(parts, batch_size=64)
    check_first_batch(task.model, loader, task, autocast=torch.autocast("cpu", enabled=False))
    assert 1 < metric.calls <= MOST_OF_METRICS
