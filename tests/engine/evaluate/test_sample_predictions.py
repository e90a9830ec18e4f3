"""What a model predicts for each sample, and the loss of each sample alone."""

import pytest
import torch
from torch import nn

import surestep
from surestep.engine.evaluate.sample_predictions import find_kind, predict_rows, why_not_shown
from surestep.engine.losses.adapt import as_loss, items_only_loss
from surestep.engine.losses.registry import BUILT_IN

losses = surestep.losses
GENERATOR = torch.Generator().manual_seed(3)
WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.25])


def draw(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def classes(*shape, ignored=None):
    found = torch.randint(0, 4, shape, generator=GENERATOR)
    return found if ignored is None else found.where(found > 0, ignored)


def labels(*shape):
    return torch.randint(0, 2, shape, generator=GENERATOR).float()


SMOOTHED = nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1)
CASES = {
    "torch classes": (nn.CrossEntropyLoss(), draw(6, 4), classes(6)),
    "torch weights": (SMOOTHED, draw(6, 4), classes(6)),
    "torch pixels": (nn.CrossEntropyLoss(WEIGHT), draw(6, 4, 3, 2), classes(6, 3, 2, ignored=-100)),
    "torch ignored": (nn.CrossEntropyLoss(ignore_index=2), draw(6, 4, 5), classes(6, 5)),
    "torch shares": (SMOOTHED, draw(6, 4), draw(6, 4).softmax(1)),
    "torch nll": (nn.NLLLoss(WEIGHT), draw(6, 4).log_softmax(1), classes(6)),
    "classes": (losses.multiclass(weight=WEIGHT), draw(6, 4), classes(6)),
    "classes last": (losses.multiclass(class_dim=-1), draw(6, 5, 4), classes(6, 5)),
    "classes in half": (losses.multiclass(), draw(6, 4).bfloat16(), classes(6)),
    "next tokens": (losses.next_token(), draw(6, 5, 4), classes(6, 5)),
    "masked": (losses.masked_tokens(class_dim=1), draw(6, 4, 5), classes(6, 5, ignored=-100)),
    "torch binary": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), draw(6), labels(6)),
    "probabilities": (nn.BCELoss(), draw(6, 1).sigmoid(), labels(6, 1)),
    "binary": (losses.binary(pos_weight=2.0, label_smoothing=0.2), draw(6, 1), labels(6, 1)),
    "labels": (losses.multilabel(pos_weight=WEIGHT, ignore_index=-1), draw(6, 4), labels(6, 4)),
    "mse": (losses.mse(), draw(6, 2), draw(6, 2)),
    "mae": (nn.L1Loss(), draw(6), draw(6)),
    "huber": (losses.huber(delta=0.3), draw(6, 1), draw(6, 1)),
    "torch huber": (nn.HuberLoss(delta=0.3), draw(6, 1), draw(6, 1)),
    "smooth": (nn.SmoothL1Loss(beta=0.7), draw(6, 2, 3), draw(6, 2, 3)),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_of_each_sample_is_that_of_the_sample_alone(name):
    given, outputs, targets = CASES[name]
    loss = as_loss(given, "samples")
    rows = predict_rows(loss, outputs, targets)
    expected = []
    for index in range(len(outputs)):
        one, target = outputs[index : index + 1], targets[index : index + 1]
        total = loss.total(one.float(), target, loss.items(None, target))[0]
        items = loss.items(None, target)
        expected.append(float(total) / items if items else 0.0)
    assert rows.losses.tolist() == pytest.approx(expected, rel=1e-5)


def test_prediction_of_classes_is_the_largest_output_and_its_probability():
    outputs, targets = draw(6, 4, 3), classes(6, 3, ignored=-100)
    rows = predict_rows(as_loss(nn.CrossEntropyLoss(), "samples"), outputs, targets)
    confidence, predictions = outputs.softmax(1).max(1)
    assert torch.equal(rows.predictions, predictions)
    assert torch.allclose(rows.confidence, confidence.double())
    assert torch.equal(rows.kept, targets != -100)
    assert torch.equal(rows.is_wrong, (targets != -100) & (predictions != targets))
    assert rows.classes == 4


def test_next_token_predicts_the_token_after_each_position():
    outputs, tokens = draw(6, 5, 4), classes(6, 5)
    rows = predict_rows(as_loss("next_token", "samples"), outputs, tokens)
    assert torch.equal(rows.predictions, outputs.argmax(2))
    assert torch.equal(rows.targets[:, :-1], tokens[:, 1:])
    assert not rows.kept[:, -1].any()


def test_prediction_of_a_label_is_the_likelier_one():
    outputs = torch.tensor([[2.0, -1.0], [0.0, float("nan")]])
    rows = predict_rows(as_loss("multilabel", "samples"), outputs, torch.tensor([[1.0, 1], [0, 0]]))
    assert rows.predictions.tolist() == [[1, 0], [1, -1]]
    assert rows.is_wrong.tolist() == [[False, True], [True, True]]
    first = torch.tensor([2.0, 1.0]).sigmoid()  # 1 - sigmoid(-1) is sigmoid(1)
    assert torch.allclose(rows.confidence[0], first.double())
    assert rows.has_labels


def test_masks_of_pixels_are_not_labels():
    rows = predict_rows(
        as_loss(nn.BCEWithLogitsLoss(), "samples"), draw(2, 1, 3, 3), draw(2, 1, 3, 3)
    )
    assert rows.kept.shape == (2, 9)
    assert not rows.has_labels


def own(outputs, targets):
    return outputs.mean()


class OwnLoss(nn.CrossEntropyLoss):
    """It may compute anything."""


def hooked():
    loss = nn.MSELoss()
    loss.register_forward_hook(lambda *_: None)
    return loss


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (own, "the loss is a custom function"),
        (OwnLoss(), "the loss is a custom function"),
        (hooked(), "the loss has a hook or a custom forward"),
        (nn.PoissonNLLLoss(), "the loss PoissonNLLLoss does not define one prediction"),
        ("quantile", "the loss quantile does not define one prediction"),
        ("triplet", "the loss triplet does not define one prediction"),
    ],
)
def test_loss_without_a_prediction_has_a_reason(given, why):
    loss = as_loss(given, "samples")
    assert find_kind(loss) is None
    assert why_not_shown(loss).startswith(why)


def test_loss_of_the_step_has_a_reason():
    assert why_not_shown(items_only_loss("samples")).startswith("the step of the Task computes")


def test_every_loss_has_a_kind_or_a_reason():
    shown = {name for name in BUILT_IN if not why_not_shown(as_loss(name, "samples"))}
    assert shown == {
        *("binary", "multiclass", "multilabel", "next_token", "masked_tokens"),
        *("mse", "mae", "huber"),
    }
