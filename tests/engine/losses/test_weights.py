import copy

import numpy as np
import pytest
import torch
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional
from torch.utils.data import IterableDataset, Subset

import surestep
from surestep.base.errors import DataError, TaskError
from surestep.engine.data import target_stats
from surestep.engine.data.target_stats import read_targets
from surestep.engine.losses.adapt import as_loss
from surestep.trainer.planning import plan_task
from tests import tiny
from tests.laws.support.tasks import assert_same, mlp, rows, session_of, snapshot

X, Y = rows()
Y[Y == 2] = torch.tensor([0, 2]).repeat(55)[: int((Y == 2).sum())]  # so that class 2 is rare
MASKED = Y.masked_fill(torch.arange(55) % 7 == 0, -100)
LABELS = torch.stack([Y == 0, Y == 2], 1).float()
BALANCED = surestep.losses.multiclass(weight="balanced")


def sklearns(targets):
    kept = targets[targets != -100].numpy()
    return torch.tensor(compute_class_weight("balanced", classes=np.unique(kept), y=kept))


class Samples(torch.utils.data.Dataset):
    """A map-style dataset that draws random numbers."""

    def __init__(self, y):
        self.y = y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return X[index] + torch.randn(10), self.y[index]


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


def planned(train, loss=BALANCED, outputs=3, **said):
    task = surestep.Task(model=mlp(outputs=outputs), loss=loss, train=train)
    return plan_task(task, tiny.config(**said))


@pytest.mark.parametrize(
    ("train", "targets"),
    [
        ((X, Y), Y),
        ((X, MASKED), MASKED),
        ({"x": X, "y": Y}, Y),
        (Samples(Y), Y),
        (Subset(Samples(Y), range(40)), Y[:40]),
    ],
    ids=["tensors", "ignored", "dict", "dataset", "subset"],
)
def test_balanced_weights_equal_those_of_sklearn(train, targets):
    weight = planned(train).loss.module.weights
    torch.testing.assert_close(weight, sklearns(targets), rtol=1e-15, atol=0)
    assert BALANCED.weights is None  # weights from one Task's data stay in that Task


@pytest.mark.parametrize("samples", [1, 8, 9])
@pytest.mark.parametrize("train", [Samples, lambda y: (torch.zeros(len(y), 10), y)])
def test_each_target_is_read_once(train, samples, monkeypatch):
    monkeypatch.setattr(target_stats, "BATCH", 4)
    task = surestep.Task(model=mlp(), loss=BALANCED, train=train(Y[:samples]))
    assert torch.equal(torch.cat(list(read_targets(task, 0, "it"))), Y[:samples])


def test_reading_the_targets_preserves_the_random_state():
    before = torch.get_rng_state()
    task = surestep.Task(model=mlp(), loss=BALANCED, train=Samples(Y))
    assert torch.equal(torch.cat(list(read_targets(task, 0, "it"))), Y)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("loss", "targets", "expected"),
    [
        (surestep.losses.binary(pos_weight="balanced"), LABELS[:, :1], (55 - 19) / 19),
        (surestep.losses.multilabel(pos_weight="balanced"), LABELS, None),
    ],
    ids=["binary", "multilabel"],
)
def test_balanced_pos_weight_is_zeros_divided_by_ones(loss, targets, expected):
    found = planned((X, targets), loss, outputs=targets.shape[1]).loss.module.weights
    ones = targets.sum(0).double()
    wanted = (55 - ones) / ones
    torch.testing.assert_close(found.reshape(-1), wanted, rtol=1e-15, atol=0)


def test_balanced_pos_weight_counts_more_targets_than_fp32_can():
    loss = surestep.losses.binary(pos_weight="balanced")
    many = torch.ones((), dtype=torch.uint8).expand(2**24)
    loss.fit([many, *[torch.ones(1)] * 5, torch.zeros(3)])
    assert float(loss.weights) == 3 / (2**24 + 5)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_balanced_weights_are_those_of_all_batches_together(order):
    """A batch may lack the last classes, and the next one has them."""
    batches = [[0, 0, 1, -100], [2, 1, 2, 2, 2], [0]]
    loss = copy.deepcopy(BALANCED)
    loss.fit([torch.tensor(batches[index]) for index in order])
    expected = sklearns(torch.tensor([label for batch in batches for label in batch]))
    torch.testing.assert_close(loss.weights, expected, rtol=1e-15, atol=0)


def test_balanced_pos_weight_of_binary_is_one_number_for_targets_of_any_shape():
    loss = surestep.losses.binary(pos_weight="balanced")
    loss.fit([torch.tensor([[1, 0], [0, 0]]), torch.tensor([[1, 1], [1, 0]])])
    assert (loss.weights.shape, float(loss.weights)) == ((), 1.0)


def test_class_weight_of_zero_leaves_the_class_out():
    loss = as_loss(surestep.losses.multiclass(weight=[0.0, 1.0, 1.0]), "samples")
    outputs, targets = torch.randn(3, 3), torch.tensor([0, 1, 2])
    assert loss.items(None, targets) == 2
    torch.testing.assert_close(
        loss.value(outputs, targets), loss.value(outputs[1:], targets[1:]), rtol=1e-6, atol=0
    )


def test_ignored_labels_do_not_count_for_balanced_pos_weight():
    loss = surestep.losses.binary(pos_weight="balanced", ignore_index=-1)
    targets = torch.tensor([[1.0], [0.0], [-1.0], [0.0]])
    assert planned((X[:4], targets), loss, outputs=1).loss.module.weights == 2


def test_plan_reports_the_samples_read_for_the_weights_and_the_divisor():
    plan = planned((X, Y)).plan
    assert plan.loss.startswith("multiclass(weight='balanced'")
    shown = ", ".join(f"{value:.4g}" for value in sklearns(Y).tolist())
    assert f"weight={shown}, read from the 55 training samples" in plan.reason("loss")
    assert "divided by sum of the weights of targets that are not ignored" in plan.reason("loss")
    assert planned((X, Y), nn.CrossEntropyLoss()).plan.loss == "CrossEntropyLoss"


def weighted_cross_entropy(outputs, targets):
    weight = len(targets) / (3 * torch.bincount(targets, minlength=3))
    return functional.cross_entropy(outputs, targets, weight=weight)


def weighted_bce(outputs, targets):
    ones, wanted = targets.sum(0), targets.to(outputs.dtype)
    weight = (len(targets) - ones) / ones
    return functional.binary_cross_entropy_with_logits(outputs, wanted, pos_weight=weight)


@pytest.mark.parametrize("given", [lambda y: [y], lambda y: [y.numpy()], lambda y: [y.tolist()]])
@pytest.mark.parametrize(
    ("loss", "classes", "targets", "plain"),
    [
        (surestep.losses.multiclass(weight="balanced"), (3,), Y[:40], weighted_cross_entropy),
        (surestep.losses.binary(pos_weight="balanced"), (), (Y[:40] == 2).long(), weighted_bce),
        (surestep.losses.multilabel(pos_weight="balanced"), (2,), LABELS[:40], weighted_bce),
    ],
    ids=["multiclass", "binary", "multilabel"],
)
def test_balanced_loss_is_fitted_before_it_is_called(loss, classes, targets, plain, given):
    loss = copy.deepcopy(loss)
    outputs = torch.randn(40, *classes, generator=torch.Generator().manual_seed(0))
    calls = [loss, loss.total]
    if loss.name == "multiclass":  # of the others, the items have no weights
        calls.append(lambda outputs, targets: loss.items(outputs, targets))
    for call in calls:
        with pytest.raises(
            TaskError, match=r"balanced'.*\) is not fitted .* call loss\.fit\(\[targets"
        ):
            call(outputs, targets)
    loss.fit(given(targets))
    torch.testing.assert_close(loss(outputs, targets), plain(outputs, targets))


@pytest.mark.parametrize(
    ("loss", "targets", "sentence"),
    [
        (BALANCED, {"a": Y}, "counts targets, and those of a batch are a dict"),
        (surestep.losses.binary(pos_weight="balanced"), "yes", "of a batch are a str"),
        (BALANCED, LABELS, "counts class indices, and the targets are torch.float32"),
    ],
)
def test_targets_that_cannot_be_counted_are_named(loss, targets, sentence):
    with pytest.raises(DataError, match=sentence):
        copy.deepcopy(loss).fit([targets])


def test_balanced_loss_inside_another_function_is_rejected(tmp_path):
    with pytest.raises(TaskError, match="is not fitted to the training targets"):
        tiny.fit(tmp_path, {"loss": lambda o, t: copy.deepcopy(BALANCED)(o, t)})


def test_balanced_weights_are_reported_when_the_run_starts(tmp_path, capsys):
    task = surestep.Task(model=mlp(), loss=BALANCED, train=(X, Y))
    with session_of(task, tmp_path, epochs=1, logging={"progress": "plain"}):
        pass
    assert "read from the 55 training samples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("train", "loss", "sentence"),
    [
        ((X, Y + (Y == 2)), BALANCED, r"no sample of class 2, so weight='balanced' is not defined"),
        ((X, LABELS), BALANCED, r"counts class indices.*Use weight=\[\.\.\.\]"),
        (
            (X, torch.zeros(55, 3)),
            surestep.losses.multilabel(pos_weight="balanced"),
            "no sample of label 0, 1, 2",
        ),
        (Stream(), BALANCED, "a stream is not read twice. Set a number for each class"),
    ],
    ids=["class missing", "no indices", "no ones", "stream"],
)
def test_targets_that_cannot_be_balanced_are_rejected(train, loss, sentence):
    with pytest.raises(DataError, match=sentence):
        planned(train, loss, epochs=None, max_steps=3)


def test_resumed_run_has_the_same_balanced_weights(tmp_path):
    def run(folder, stop=None):
        task = surestep.Task(model=mlp(), loss=BALANCED, train=(X, Y))
        with session_of(task, tmp_path / folder, max_steps=9, batch_size=16) as session:
            for result in session.steps():
                if result.step == stop:
                    session.save()
                    break
        return session

    never = run("never")
    run("stopped", stop=4)
    assert_same(snapshot(never), snapshot(run("stopped")))


def test_class_weights_move_to_the_device_and_items_stay_on_the_host():
    loss = as_loss(surestep.losses.multiclass(weight=[1.0, 2.0, 3.0]), "samples")
    loss.to(torch.device("meta"))
    assert loss.module.weights.device.type == "meta"
    assert loss.items(None, torch.tensor([0, 2])) == 4
    assert list(loss.module.parameters()) == []
    assert loss.module.state_dict() == {}


def test_weight_of_a_torch_loss_of_the_user_is_not_moved():
    plain = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]))
    as_loss(plain, "samples").to(torch.device("meta"))
    assert plain.weight.device.type == "cpu"
