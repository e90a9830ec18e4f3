import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import surestep
from surestep import batch_transforms
from surestep.base.errors import DataError, TaskError
from surestep.engine.data.batch_transforms import _box
from surestep.engine.losses.adapt import as_loss
from surestep.engine.losses.mixed import MixedTargets, accept_mixed
from tests import tiny

X, Y = tiny.data(12)
IMAGES = torch.arange(12.0).reshape(12, 1, 1, 1).expand(12, 3, 8, 6)


def seeded(transform, inputs, targets, seed=0):
    random.seed(seed)
    torch.manual_seed(seed)
    return transform(inputs, targets)


def test_mixup_blends_samples_and_targets_with_the_same_share():
    x, targets = seeded(batch_transforms.mixup(0.4, classes=3), X, Y)
    random.seed(0)
    torch.manual_seed(0)
    share, partner = random.betavariate(0.4, 0.4), torch.randperm(12)
    assert torch.equal(x, share * X + (1 - share) * X[partner])
    one_hot = functional.one_hot(Y, 3).float()
    assert torch.equal(targets, share * one_hot + (1 - share) * one_hot[partner])


def test_cutmix_mixes_targets_by_the_area_of_the_original_image():
    for seed in range(20):
        x, targets = seeded(batch_transforms.cutmix(classes=12), IMAGES, torch.arange(12), seed)
        kept = (x[:, 0] == IMAGES[:, 0]).double().mean((1, 2))
        rows = targets[torch.arange(12), torch.arange(12)].double()
        assert torch.allclose(rows, kept)
        assert torch.allclose(targets.sum(1), torch.ones(12))


def test_mixed_targets_have_the_dtype_of_the_inputs():
    assert batch_transforms.mixup(classes=3)(X.double(), Y)[1].dtype == torch.float64


def test_every_floating_input_is_blended_with_the_same_partner():
    named, _ = seeded(batch_transforms.mixup(classes=3), {"a": X, "b": [2 * X]}, Y)
    assert torch.allclose(named["b"][0], 2 * named["a"])


def test_class_probabilities_and_class_maps_are_mixed():
    soft = torch.rand(12, 3)
    assert batch_transforms.mixup()(X, soft)[1].shape == (12, 3)
    maps = torch.randint(0, 3, (12, 8, 6))
    mixed = batch_transforms.mixup(classes=3)(IMAGES, maps)[1]
    assert mixed.shape == (12, 3, 8, 6)
    assert torch.allclose(mixed.sum(1), torch.ones(12, 8, 6))


def test_cutmix_does_not_modify_its_input():
    images = IMAGES.clone()
    seeded(batch_transforms.cutmix(classes=3), images, Y)
    assert torch.equal(images, IMAGES)


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [batch_transforms.mixup, batch_transforms.cutmix])
def test_invalid_alpha_is_rejected(make, alpha):
    with pytest.raises(TaskError, match=r"has no shares to draw\. Use an alpha above 0"):
        make(alpha)


MIXUP = batch_transforms.mixup(classes=3)


def custom(outputs, targets):
    return functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"batch_transform": batch_transforms.mixup(), "loss": custom},
            r"is not set\. Use mixup\(0\.2, classes=10\)",
        ),
        (
            {"batch_transform": batch_transforms.mixup(classes=2)},
            "targets run from 0 to 2, with classes=2",
        ),
        (
            {"batch_transform": batch_transforms.mixup(classes=4), "loss": custom},
            r"The loss fails on the first batch, .* shapes \[\(8, 3\), \(8, 4\)\]",
        ),
        (
            {"batch_transform": batch_transforms.cutmix(classes=3)},
            r"cutmix takes images of .* shapes \[\(8, 4\)\]\. Use mixup",
        ),
        (
            {"batch_transform": lambda inputs, targets: (inputs @ torch.ones(9), targets)},
            "batch_transform fails on the first batch: .*size",
        ),
        (
            {"batch_transform": lambda inputs, targets: (inputs[:, :2], targets)},
            r"model fails on the first batch, whose inputs have shapes \[\(8, 2\)\]",
        ),
    ],
)
def test_mismatched_batch_transform_is_rejected_at_the_start(tmp_path, parts, message):
    with pytest.raises((TaskError, DataError), match=message):
        tiny.prepare(tmp_path / "run", parts)


def test_rectangle_of_a_wide_image_has_the_shape_of_the_image():
    random.seed(0)
    boxes = [_box(8, 32, 0.75) for _ in range(400)]  # a quarter of the area
    sizes = [(bottom - top, right - left) for top, bottom, left, right in boxes]
    assert tuple(map(max, zip(*sizes, strict=True))) == (4, 16)
    tops, bottoms, lefts, rights = zip(*boxes, strict=True)
    assert (min(tops), max(bottoms), min(lefts), max(rights)) == (0, 8, 0, 32)


def test_mixup_of_token_ids_is_rejected():
    with pytest.raises(TaskError, match=r"an input is torch\.int64\. Use x\.float\(\)"):
        MIXUP(torch.zeros(3, 4, dtype=torch.int64), Y[:3])


def test_mixup_of_targets_that_are_not_a_tensor_is_rejected():
    with pytest.raises(TaskError, match="these are a dict"):
        MIXUP(X, {"a": Y})


def test_cutmix_of_class_maps_is_rejected():
    with pytest.raises(TaskError, match="one target for each image"):
        batch_transforms.cutmix(classes=3)(IMAGES, torch.zeros(12, 8, 6).long())


CHECKED = torch.tensor([0, 1, -1, 1, 0, -1, -1, 0, 1, 1, 0, 1])
LABELS = torch.stack([CHECKED, CHECKED.roll(1), CHECKED.roll(2)], 1)
WEIGHT = torch.tensor([0.2, 1.0, 3.0])
MULTICLASS = surestep.losses.multiclass
PAIRS = {
    "CE": (nn.CrossEntropyLoss(), Y.masked_fill(CHECKED < 0, -100)),
    "CE weight": (nn.CrossEntropyLoss(weight=WEIGHT), Y.masked_fill(CHECKED < 0, -100)),
    "CE smoothed": (
        nn.CrossEntropyLoss(label_smoothing=0.2, ignore_index=255),
        Y.masked_fill(CHECKED < 0, 255),
    ),
    "CE ignoring a class": (nn.CrossEntropyLoss(ignore_index=1), Y),
    "NLL": (nn.NLLLoss(), Y.masked_fill(CHECKED < 0, -100)),
    "multiclass weight": (MULTICLASS(weight=WEIGHT), Y.masked_fill(CHECKED < 0, -100)),
    "multilabel": (surestep.losses.multilabel(ignore_index=-1), LABELS.float()),
    "multilabel of integers": (
        surestep.losses.multilabel(ignore_index=-1, label_smoothing=0.1),
        LABELS,
    ),
    "focal": (surestep.losses.focal(ignore_index=-1), LABELS.float()),
    "MultiMargin": (nn.MultiMarginLoss(), Y),
}


def plain_mean(name, loss, outputs, targets):
    """Return torch's mean over the targets that are not ignored."""
    if name.startswith("multilabel"):
        kept = targets >= 0
        share = 0.1 if "integers" in name else 0.0
        wanted = targets[kept].float() * (1 - share) + share / 2
        return functional.binary_cross_entropy_with_logits(outputs[kept], wanted)
    if name == "focal":
        kept = targets >= 0
        outputs, wanted = outputs[kept], targets[kept]
        losses = functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")
        return (losses * (outputs.sigmoid() - wanted).abs() ** 2).mean()
    if name == "multiclass weight":
        loss = nn.CrossEntropyLoss(weight=WEIGHT)
    return loss(outputs.log_softmax(1) if name == "NLL" else outputs, targets)


@pytest.mark.parametrize("size", [12, 5, 1])
@pytest.mark.parametrize("name", PAIRS)
def test_ignored_targets_stay_ignored_as_in_a_mix_of_two_losses(tmp_path, monkeypatch, name, size):
    loss, targets = PAIRS[name]
    drawn = []
    plain_mix = batch_transforms.MixTransform.mix_targets

    def mix(self, inputs, targets, partner, share):
        drawn.append((partner, share))
        return plain_mix(self, inputs, targets, partner, share)

    monkeypatch.setattr(batch_transforms.MixTransform, "mix_targets", mix)
    net = nn.Sequential(*tiny.model(), *([nn.LogSoftmax(1)] if "NLL" in name else []))
    parts = {"model": net, "loss": loss, "train": (X, targets)}
    parts["batch_transform"] = batch_transforms.mixup(0.4)
    sgd = {"optim": {"name": "sgd", "lr": 1.0, "weight_decay": 0.0, "momentum": 0.0}}
    options = {"micro_batch_size": size, "batch_size": 12, "max_steps": 1, "max_grad_norm": "off"}
    options |= sgd | {"schedule": {"name": "constant"}, "data": {"shuffle": False}}
    plain = tiny.model()
    with tiny.prepare(tmp_path / "run", parts, **options) as session:
        value = float(next(session.steps()).loss)
        after = [weight.detach().clone() for weight in session.state.model.parameters()]
    partner, share = drawn[-1]
    outputs = plain(share * X + (1 - share) * X[partner])
    expected = share * plain_mean(name, loss, outputs, targets)
    expected = expected + (1 - share) * plain_mean(name, loss, outputs, targets[partner])
    assert value == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for weight, own in zip(plain.parameters(), after, strict=True):
        torch.testing.assert_close(own, weight.detach() - weight.grad, rtol=1e-5, atol=1e-6)


def test_probabilities_are_blended_for_a_loss_of_classes():
    soft = torch.rand(12, 3).softmax(1)
    task = tiny.plan({"train": (X, soft), "batch_transform": batch_transforms.mixup()})
    own = batch_transforms.mixup().for_loss(task.loss)
    _, targets = seeded(own, X, soft)
    assert torch.equal(targets, seeded(batch_transforms.mixup(), X, soft)[1])


def test_cutmix_keeps_ignored_targets_apart():
    loss = as_loss(surestep.losses.multilabel(ignore_index=-1), "samples")
    _, targets = seeded(batch_transforms.cutmix().for_loss(loss), IMAGES, LABELS.float())
    assert torch.equal(targets.first, LABELS.float())
    assert sorted(targets.second[:, 0].tolist()) == sorted(LABELS[:, 0].tolist())


SHARES = torch.full((2,), 0.3)


def test_mixed_targets_count_by_their_shares():
    """A part of a mixed batch, as the search for the sample of a NaN takes it."""
    loss = accept_mixed(as_loss(nn.CrossEntropyLoss(), "samples"))
    first, second = torch.tensor([[0, 1, -100]] * 2), torch.tensor([[2, -100, -100]] * 2)
    mixed = MixedTargets(first, second, SHARES)
    assert loss.items(None, mixed) == pytest.approx(0.3 * 4 + 0.7 * 2)
    with_teacher = mixed, torch.zeros(2, 3, 3)
    distilled = accept_mixed(as_loss(surestep.losses.distillation(), "samples"))
    assert distilled.items(None, with_teacher) == pytest.approx(0.3 * 4 + 0.7 * 2)
    outputs = torch.randn(2, 3, 3).half()
    wide = loss.total(outputs, mixed, loss.items(None, mixed))[0]
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide, loss.value(outputs.float(), mixed), rtol=2e-3, atol=0)


def test_all_terms_of_a_loss_are_mixed():
    outputs, first, second = (
        torch.randn(2, 3, 5),
        torch.randint(5, (2, 3)),
        torch.randint(5, (2, 3)),
    )
    first[0, 0] = second[1, 1] = -100
    loss = accept_mixed(as_loss(surestep.losses.masked_tokens(z_loss=0.1), "samples"))
    terms = loss.value(outputs, MixedTargets(first, second, SHARES))

    def mix(term):
        return 0.3 * term(first) + 0.7 * term(second)

    expected = {
        "cross_entropy": mix(
            lambda targets: functional.cross_entropy(
                outputs.flatten(0, 1), targets.flatten(), reduction="sum"
            )
        ),
        "z_loss": mix(lambda targets: 0.1 * outputs.logsumexp(2)[targets >= 0].square().sum()),
    }
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value)
