"""Metrics that are not means over samples are rejected; means are accepted."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score, roc_auc_score
from torch import nn

import surestep
from surestep.base.errors import TaskError
from tests import tiny
from tests.laws.support.detector import Detector, Images, collate

X, Y = tiny.data(64, seed=7)
X2, Y2 = X, (X[:, 0] > 0).long()
REAL = X @ torch.tensor([1.0, -2.0, 0.5, 0.0])


def constant_head(outputs):
    """Return a new model whose last layer is zero: its outputs are equal for every sample."""
    head = nn.Linear(8, outputs)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), head)


def fresh(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


class Flat(nn.Sequential):
    def forward(self, x):
        return super().forward(x).squeeze(-1)


def binary(model):
    return {"model": Flat(*model(1)), "loss": nn.BCEWithLogitsLoss(), "train": (X, Y2.float())}


def classes(model):
    return {"model": model(3), "loss": nn.CrossEntropyLoss(), "train": (X, Y)}


def numbers(model):
    return {"model": Flat(*model(1)), "loss": nn.MSELoss(), "train": (X, REAL)}


def prepared(tmp_path, parts, metric, **said):
    options = {"batch_size": 32, "max_steps": 1, **said}
    with tiny.prepare(tmp_path / "run", {**parts, "metrics": {"m": metric}}, **options):
        pass


def correlation(outputs, targets):
    with np.errstate(all="ignore"):
        return np.corrcoef(outputs, targets)[0, 1] if len(outputs) > 1 else 0.0


NOT_MEANS = {
    "auc": (binary, lambda o, t: roc_auc_score(t, o) if t.unique().numel() > 1 else 0.5),
    "f1 of two": (binary, lambda o, t: f1_score(t, o > 0, zero_division=0)),
    "f1 macro": (classes, lambda o, t: f1_score(t, o.argmax(1), average="macro")),
    "recall of class 1": (classes, lambda o, t: (o.argmax(1) == 1)[t == 1].float().mean()),
    "precision": (binary, lambda o, t: t[o > 0].mean() if (o > 0).any() else torch.tensor(0.0)),
    "correlation": (numbers, correlation),
    "rmse": (numbers, lambda o, t: (o - t).square().mean().sqrt()),
    "r2": (numbers, lambda o, t: r2_score(t, o) if len(o) > 1 else 0.0),
    "perplexity": (classes, lambda o, t: nn.functional.cross_entropy(o, t).exp()),
    "median": (numbers, lambda o, t: (o - t).abs().median()),
    "maximum": (numbers, lambda o, t: (o - t).abs().max()),
    "sum": (numbers, lambda o, t: (o - t).abs().sum()),
    "all correct": (classes, lambda o, t: (o.argmax(1) == t).all().float()),
    "all correct of two": (binary, lambda o, t: float(((o > 0) == (t > 0.5)).all())),
    "any wrong": (classes, lambda o, t: (o.argmax(1) != t).any().float()),
    "spread": (classes, lambda o, t: o.std(unbiased=False)),
    "balanced": (
        classes,
        lambda o, t: torch.stack(
            [(o.argmax(1) == c)[t == c].float().mean() for c in range(3)]
        ).nanmean(),
    ),
}
MEANS = {
    "accuracy": (classes, lambda o, t: (o.argmax(1) == t).float().mean()),
    "accuracy as a float": (classes, lambda o, t: float((o.argmax(1) == t).float().mean())),
    "accuracy of logits": (binary, lambda o, t: ((o > 0) == (t > 0.5)).float().mean()),
    "top 2": (classes, lambda o, t: (o.topk(2).indices == t[:, None]).any(1).float().mean()),
    "cross-entropy": (classes, nn.functional.cross_entropy),
    "brier": (
        classes,
        lambda o, t: (o.softmax(1) - nn.functional.one_hot(t, 3)).square().sum(1).mean(),
    ),
    "error": (numbers, lambda o, t: (o - t).mean()),
    "squared error": (numbers, nn.functional.mse_loss),
    "absolute error": (numbers, lambda o, t: (o - t).abs().mean()),
    "confidence": (classes, lambda o, t: o.softmax(1).amax(1).mean()),
    "sum and count": (classes, lambda o, t: ((o.argmax(1) == t).sum(), len(t))),
    "recall by sum and count": (
        classes,
        lambda o, t: ((o.argmax(1) == 1)[t == 1].sum(), int((t == 1).sum())),
    ),
    "constant": (classes, lambda o, t: 0.25),
    "random": (classes, lambda o, t: torch.rand(())),
    "needs two": (classes, lambda o, t: (o.squeeze().argmax(1) == t).float().mean()),
}


@pytest.mark.parametrize("model", [fresh, constant_head])
@pytest.mark.parametrize("name", NOT_MEANS)
def test_metric_that_is_not_a_mean_over_samples_is_rejected(tmp_path, name, model):
    parts, metric = NOT_MEANS[name]
    with pytest.raises(TaskError, match=r"metrics\['m'\] is not a mean over samples: .*whole_set"):
        prepared(tmp_path, parts(model), metric)


@pytest.mark.parametrize("name", NOT_MEANS)
def test_metric_that_is_not_a_mean_is_accepted_as_whole_set_metric(tmp_path, name):
    parts, metric = NOT_MEANS[name]
    prepared(tmp_path, parts(fresh), surestep.whole_set(metric))


@pytest.mark.parametrize("size", [2, 3, 32, 64])
@pytest.mark.parametrize("model", [fresh, constant_head])
@pytest.mark.parametrize("name", MEANS)
def test_metric_that_is_a_mean_is_accepted(tmp_path, name, model, size):
    parts, metric = MEANS[name]
    prepared(tmp_path, parts(model), metric, batch_size=size)


@pytest.mark.parametrize("name", MEANS)
def test_metric_that_is_a_mean_is_accepted_if_all_are_of_one_class(tmp_path, name):
    make, metric = MEANS[name]
    parts = make(fresh)
    prepared(tmp_path, {**parts, "train": (X, torch.zeros_like(parts["train"][1]))}, metric)


def mean_of_recalls(outputs, targets):
    chosen, classes = outputs.argmax(1), targets.unique()
    return torch.stack([(chosen[targets == c] == c).float().mean() for c in classes]).mean()


@pytest.mark.parametrize(
    ("model", "metric"),
    [
        (2, lambda o, t: f1_score(t, o.argmax(1), zero_division=0)),
        (3, lambda o, t: ((o.argmax(1) == 1) & (t == 1)).sum() / (t == 1).sum().clamp(min=1)),
        (3, mean_of_recalls),
        (1, NOT_MEANS["f1 of two"][1]),
        (1, lambda o, t: ((o > 0) & (t > 0)).sum() / (t > 0).sum().clamp(min=1)),
    ],
)
def test_metric_of_rare_classes_is_rejected_if_the_first_batch_has_none(tmp_path, model, metric):
    parts = binary(fresh) if model == 1 else {**classes(fresh), "model": fresh(model)}
    targets = torch.zeros(64, dtype=parts["train"][1].dtype)
    targets[60:] = 1
    parts["train"] = X, targets
    with pytest.raises(TaskError, match=r"not a mean over samples: .*other outputs and classes"):
        prepared(tmp_path, parts, metric, data={"shuffle": False})


def tokens(o, t):
    return o.argmax(2) == t


def test_exact_match_of_sequences_is_distinguished_from_that_of_a_batch(tmp_path):
    targets = torch.randint(3, (64, 5), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(X.shape[1], 15), nn.Unflatten(1, (5, 3)))

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.movedim(2, 1), targets)

    parts = {"model": model, "loss": loss, "train": (X, targets), "val": (X, targets)}
    prepared(tmp_path / "each", parts, lambda o, t: tokens(o, t).all(1).float().mean())
    with pytest.raises(TaskError, match=r"metrics\['m'\] is not a mean over samples"):
        prepared(tmp_path / "batch", parts, lambda o, t: tokens(o, t).all().float())


def test_metric_with_one_value_for_all_outputs_is_listed_as_not_checked(tmp_path):
    parts = {**classes(fresh), "metrics": {"m": lambda o, t: 0.25}}
    with tiny.prepare(tmp_path / "run", parts, batch_size=32, max_steps=1) as session:
        noted = session.plan.reason("not_checked")
    assert "metrics['m']: it is 0.25 for all samples and outputs that were tried" in noted


def test_mean_over_tokens_is_distinguished_from_a_mean_over_samples(tmp_path):
    targets = torch.randint(3, (64, 5), generator=torch.Generator().manual_seed(0))
    targets[:, 1:][torch.rand(64, 4, generator=torch.Generator().manual_seed(1)) < 0.5] = -100

    def of_tokens(outputs, targets):
        return (outputs.argmax(1) == targets)[targets != -100].float().mean()

    def of_samples(outputs, targets):
        right = ((outputs.argmax(1) == targets) & (targets != -100)).sum(1)
        return (right / (targets != -100).sum(1)).mean()

    model = nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (3, 5)))
    parts = {"model": model, "loss": nn.CrossEntropyLoss(), "train": (X, targets)}
    prepared(tmp_path / "tokens", parts, of_tokens)
    with pytest.raises(TaskError, match="is not a mean over"):
        prepared(tmp_path / "samples", parts, of_samples)


class Object:
    """A metric whose value is the mean over its batches, or over all samples."""

    def __init__(self, *, exact):
        self.exact = exact
        self.reset()

    def reset(self):
        self.values = []

    def update(self, outputs, targets):
        right = (outputs.argmax(1) == targets).float()
        self.values += right.tolist() if self.exact else [float(right.mean())]

    def compute(self):
        return sum(self.values) / len(self.values)


def test_metric_object_that_averages_batches_is_rejected(tmp_path):
    prepared(tmp_path / "exact", classes(fresh), Object(exact=True))
    with pytest.raises(TaskError, match=r"metrics\['m'\] depends on the size of the batches"):
        prepared(tmp_path / "batches", classes(fresh), Object(exact=False))


class InTraining(nn.Linear):
    """Returns its loss in training, and logits in an evaluation."""

    def forward(self, x, targets=None):
        logits = super().forward(x)
        return logits if targets is None else {"ce": nn.functional.cross_entropy(logits, targets)}


@pytest.mark.parametrize("items", ["samples", lambda batch: len(batch[1])])
def test_metrics_of_a_model_with_losses_in_training_are_checked(tmp_path, items):
    parts = {"model": InTraining(4, 3), "loss": "model in training", "items": items}
    parts |= {"train": (X, Y)}
    prepared(tmp_path / "mean", parts, MEANS["accuracy"][1])
    prepared(tmp_path / "exact", parts, Object(exact=True))
    with pytest.raises(TaskError, match=r"metrics\['m'\] is not a mean over samples"):
        prepared(tmp_path / "f1", parts, NOT_MEANS["f1 macro"][1])
    with pytest.raises(TaskError, match=r"metrics\['m'\] depends on the size of the batches"):
        prepared(tmp_path / "batches", parts, Object(exact=False))


def found_labels(outputs, targets):
    return sum(float(one["labels"].sum()) for one in outputs)


def mean_label(outputs, targets):
    return found_labels(outputs, targets) / len(outputs)


def test_metrics_of_a_detector_are_checked(tmp_path):
    torch.manual_seed(0)
    parts = {"model": Detector(), "loss": "model in training"}
    parts |= {"train": Images(), "collate_fn": collate}
    prepared(tmp_path / "mean", parts, mean_label, batch_size=4)
    with pytest.raises(TaskError, match=r"metrics\['m'\] is not a mean over samples: for 4"):
        prepared(tmp_path / "sum", parts, found_labels, batch_size=4)
