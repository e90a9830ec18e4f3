"""A loss whose weights depend on the class is checked although the first batch has one class."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from surestep.base.errors import TaskError
from surestep.engine.checks.samples import draw_classes
from surestep.engine.losses.adapt import as_loss
from tests import tiny

X = tiny.data(24)[0]
Y = torch.zeros(24, dtype=torch.long)
Y[20:] = 1
WEIGHT = torch.tensor([1.0, 20.0])


def weighted_by_hand(outputs, targets):
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return (losses * WEIGHT[targets]).sum() / WEIGHT[targets].sum()


def mean_of_classes(outputs, targets):
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return torch.stack([losses[targets == c].mean() for c in targets.unique()]).sum()


def over_positives(outputs, targets):
    chance = outputs.softmax(1)[:, 1]
    return (chance - targets).abs().sum() / targets.sum().clamp(min=1)


def open_task(folder, loss, model=None, targets=Y, **options):
    torch.manual_seed(0)
    task = {"model": model or nn.Linear(4, 2), "loss": loss, "train": (X, targets), **options}
    with tiny.prepare(folder, task, data={"shuffle": False}):
        pass


@pytest.mark.parametrize(
    "loss",
    [
        lambda o, t: functional.cross_entropy(o, t, weight=WEIGHT),
        weighted_by_hand,
        mean_of_classes,
    ],
)
def test_mean_over_class_weights_is_rejected_if_the_first_batch_has_one_class(tmp_path, loss):
    with pytest.raises(TaskError, match=r"not a mean over its items.*other outputs and classes"):
        open_task(tmp_path, loss)


def test_sum_over_positives_is_rejected_if_the_first_batch_has_none(tmp_path):
    with pytest.raises(TaskError, match="is not a sum"):
        open_task(tmp_path, over_positives, reduction="sum")


def test_loss_that_adds_up_is_accepted_if_the_first_batch_has_one_class(tmp_path):
    def focal(outputs, targets):
        chance = outputs.softmax(1).gather(1, targets[:, None])
        return (WEIGHT[targets][:, None] * (1 - chance) ** 2 * -chance.log()).mean()

    open_task(tmp_path / "focal", focal)
    binary = functional.binary_cross_entropy_with_logits
    open_task(tmp_path / "binary", lambda o, t: binary(o, t), nn.Linear(4, 1), Y[:, None].float())
    ignoring = Y.masked_fill(Y == 0, -100)
    ignoring[:3] = 0
    open_task(
        tmp_path / "ignored",
        lambda o, t: functional.cross_entropy(o, t),
        targets=ignoring,
        items="tokens",
    )


def test_weights_that_are_declared_are_accepted_if_the_first_batch_has_one_class(tmp_path):
    open_task(
        tmp_path,
        lambda o, t: functional.cross_entropy(o, t, weight=WEIGHT),
        items=lambda batch: float(WEIGHT[batch[1]].sum()),
    )


def one_hot(rows):
    return functional.one_hot(torch.arange(rows) % 3, 3).float()


def over_labels(outputs, targets):
    return -(targets * outputs.log_softmax(1)).sum() / targets.sum()


def chosen_are_right(outputs, targets):
    return (outputs.argmax(1) == targets.nonzero()[:, 1]).float().mean()


def mean_of_label(outputs, targets):
    return (targets * outputs.softmax(1)).sum() / targets.sum()


def recall_of_last(outputs, targets):
    positive = targets[:, -1:] > 0
    return ((outputs[:, -1:] > 0) & positive).sum() / positive.sum().clamp(min=1)


@pytest.mark.parametrize("metric", [chosen_are_right, mean_of_label])
def test_means_of_one_hot_targets_are_accepted(tmp_path, metric):
    model, targets = nn.Linear(4, 3), one_hot(24)
    open_task(tmp_path, over_labels, model, targets, metrics={"m": metric})


def test_means_over_classes_in_the_last_dimension_are_accepted(tmp_path):
    targets = one_hot(24 * 5).view(24, 5, 3)
    model = nn.Sequential(nn.Linear(4, 15), nn.Unflatten(1, (5, 3)))

    def loss(outputs, targets):
        return -(targets * outputs.log_softmax(2)).sum() / targets.sum()

    open_task(tmp_path, loss, model, targets)


@pytest.mark.parametrize("kind", ["one-hot", "multi-label", "none", "column"])
def test_metric_of_a_rare_label_is_rejected_if_the_first_batch_has_none(tmp_path, kind):
    targets = functional.one_hot(torch.arange(24) % 2, 3).float()
    if kind == "multi-label":
        targets[::3] = 0
    if kind in ("none", "column"):
        targets.zero_()
    targets[20:] = torch.tensor([0.0, 0.0, 1.0])
    targets = targets[:, 2:] if kind == "column" else targets
    task = nn.BCEWithLogitsLoss(), nn.Linear(4, targets.shape[1]), targets
    with pytest.raises(TaskError, match=r"not a mean over samples: .*other outputs and classes"):
        open_task(tmp_path, *task, metrics={"m": recall_of_last})


def test_function_that_fails_for_classes_that_never_occur_is_accepted(tmp_path):
    table = torch.arange(2.0)

    def with_table(outputs, targets):
        return (outputs.argmax(1) == table[targets]).float().mean()

    def needs_classes(outputs, targets):
        if targets.any() and targets.unique().numel() < 3:
            raise ValueError("too few classes")
        return (outputs.argmax(1) == targets).float().mean()

    def first_alone(outputs, targets):
        assert not targets.any()
        return functional.cross_entropy(outputs, targets)

    metrics = {"table": with_table, "classes": needs_classes}
    open_task(tmp_path / "metric", nn.CrossEntropyLoss(), nn.Linear(4, 5), metrics=metrics)
    open_task(tmp_path / "loss", first_alone)


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = property(lambda self: torch.device("cuda"))


def test_classes_that_do_not_occur_are_drawn_on_a_cpu_alone():
    """An index out of range ends the process of a GPU."""
    outputs, targets = torch.zeros(40, 9), torch.arange(40) % 3 * 2
    targets[7] = -100
    loss = as_loss(nn.CrossEntropyLoss(), "samples")
    assert set(draw_classes(targets, outputs, loss).tolist()) == {-100, *range(9)}
    found = draw_classes(targets.as_subclass(Elsewhere), outputs, loss)
    assert set(found.tolist()) == {-100, 0, 2, 4}
    assert not torch.equal(found, targets)
