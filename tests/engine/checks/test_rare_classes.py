"""A loss whose weights depend on the class is checked although the first batch has one class."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from surestep.base.errors import TaskError
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
