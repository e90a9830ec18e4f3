import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from surestep import batch_transforms
from surestep.base.errors import DataError, TaskError
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


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"batch_transform": batch_transforms.mixup()},
            r"is not set\. Use mixup\(0\.2, classes=10\)",
        ),
        (
            {"batch_transform": batch_transforms.mixup(classes=2)},
            "targets run from 0 to 2, with classes=2",
        ),
        (
            {
                "batch_transform": MIXUP,
                "loss": nn.NLLLoss(),
                "model": nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)),
            },
            r"NLLLoss does not take\. Use nn\.CrossEntropyLoss",
        ),
        (
            {"batch_transform": batch_transforms.mixup(classes=4)},
            r"shape \(8, 4\).*the outputs' shape \(8, 3\)",
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


def test_mixup_of_token_ids_is_rejected():
    with pytest.raises(TaskError, match=r"an input is torch\.int64\. Use x\.float\(\)"):
        MIXUP(torch.zeros(3, 4, dtype=torch.int64), Y[:3])


def test_mixup_of_targets_that_are_not_a_tensor_is_rejected():
    with pytest.raises(TaskError, match="these are a dict"):
        MIXUP(X, {"a": Y})


def test_cutmix_of_class_maps_is_rejected():
    with pytest.raises(TaskError, match="one target for each image"):
        batch_transforms.cutmix(classes=3)(IMAGES, torch.zeros(12, 8, 6).long())
