"""Law 1 for batch transforms: mixup, cutmix and custom ones do not depend on the micro-batch size.

The plain loop draws with the documented seed of each step, mixes the full batch, and takes
s x CE(a) + (1 - s) x CE(b), as the papers' code does.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep import batch_transforms
from tests.laws.support import plain
from tests.laws.support.tasks import mlp, rows, train

Folder = Callable[[], Path]
STEPS, BATCH = 20, 16


def images(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x, y = rows(55, dtype)
    return x.repeat(1, 5)[:, :48].reshape(55, 2, 4, 6).contiguous(), y


def flat_mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 3))


def seeded(step: int) -> None:
    seed = plain.seed_of(f"transform 0 {step}")
    random.seed(plain.seed_of(f"python {seed}"))
    np.random.seed(plain.seed_of(f"numpy {seed}") % 2**32)
    torch.manual_seed(seed)


def plain_mixup(x: Tensor, alpha: float) -> tuple[Tensor, Tensor, float]:
    share = random.betavariate(alpha, alpha)
    partner = torch.randperm(len(x))
    return share * x + (1 - share) * x[partner], partner, share


def plain_cutmix(x: Tensor, alpha: float) -> tuple[Tensor, Tensor, float]:
    """As in https://github.com/clovaai/CutMix-PyTorch, with this file's draws for the box."""
    height, width = x.shape[-2:]
    side = math.sqrt(1 - random.betavariate(alpha, alpha))
    cut_h, cut_w = int(height * side), int(width * side)
    cy, cx = random.randrange(height), random.randrange(width)
    top, bottom = np.clip([cy - cut_h // 2, cy + cut_h // 2], 0, height)
    left, right = np.clip([cx - cut_w // 2, cx + cut_w // 2], 0, width)
    partner = torch.randperm(len(x))
    mixed = x.clone()
    mixed[:, :, top:bottom, left:right] = x[partner][:, :, top:bottom, left:right]
    return mixed, partner, 1 - (bottom - top) * (right - left) / (height * width)


def plain_loop(model: nn.Module, data: tuple[Tensor, Tensor], mix: Callable, loss: Callable):
    """Train the usual loop on full batches, with a loss for each of the two targets."""
    batches = plain.shuffled(torch.utils.data.TensorDataset(*data), batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        x, y = next(batches)
        seeded(step)
        mixed, partner, share = mix(x)
        optimizer.zero_grad()
        outputs = model(mixed)
        (share * loss(outputs, y) + (1 - share) * loss(outputs, y[partner])).backward()
        optimizer.step()
    return model


CASES = {
    "mixup": (mlp, rows, lambda x: plain_mixup(x, 0.4), batch_transforms.mixup(0.4, classes=3)),
    "cutmix": (
        flat_mlp,
        images,
        lambda x: plain_cutmix(x, 1.0),
        batch_transforms.cutmix(classes=3),
    ),
}
OPTIONS = {
    "max_steps": STEPS,
    "batch_size": BATCH,
    "max_grad_norm": "off",
    "optim": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0},
}


def check_mixed(
    folder: Folder,
    name: str,
    micro_batch_size: int,
    loss: nn.Module | None = None,
    more: dict | None = None,
) -> None:
    """Compare a run that splits and mixes with the plain loop on full batches."""
    make, data, mix, transform = CASES[name]
    loss = loss or nn.CrossEntropyLoss()
    usual = plain_loop(make(), data(), mix, loss)
    task = surestep.Task(make(), loss, data(), batch_transform=transform)
    options = {**OPTIONS, "micro_batch_size": micro_batch_size, **(more or {})}
    ours = train(task, folder(), **options).model
    assert plain.distance(usual, ours) <= 1e-6


@pytest.mark.parametrize("micro_batch_size", [16, 8, 5], ids=["full", "even", "uneven"])
@pytest.mark.parametrize("name", CASES)
def test_mixed_batch_gives_the_plain_update_for_every_micro_batch_size(
    folder, name, micro_batch_size
):
    check_mixed(folder, name, micro_batch_size)


def test_smoothed_labels_are_mixed_like_hard_labels(folder):
    check_mixed(folder, "mixup", 5, nn.CrossEntropyLoss(label_smoothing=0.1))


def test_evaluating_and_saving_between_steps_changes_nothing(folder):
    check_mixed(folder, "mixup", 5, more={"checkpoint": {"every": "3 steps"}})


def test_class_weights_with_probabilities_are_divided_as_in_torch(folder):
    """If targets are probabilities, torch divides by the samples, not by the weights."""
    weight = torch.tensor([0.2, 1.0, 3.0])

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        one_hot = functional.one_hot(targets, 3).float()
        return functional.cross_entropy(outputs, one_hot, weight)

    usual = plain_loop(mlp(), rows(), lambda x: plain_mixup(x, 0.4), loss)
    mixup = batch_transforms.mixup(0.4, classes=3)
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(weight), rows(), batch_transform=mixup)
    ours = train(task, folder(), micro_batch_size=5, **OPTIONS).model
    assert plain.distance(usual, ours) <= 1e-6


def test_numeric_targets_are_mixed_as_numbers(folder):
    x, _ = rows()
    data = (x, x[:, :3] * x[:, 3:6])

    def mixed_mse(model: nn.Module) -> nn.Module:
        batches = plain.shuffled(torch.utils.data.TensorDataset(*data), batch_size=BATCH)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        for step in range(STEPS):
            inputs, targets = next(batches)
            seeded(step)
            mixed, partner, share = plain_mixup(inputs, 0.4)
            optimizer.zero_grad()
            wanted = share * targets + (1 - share) * targets[partner]
            functional.mse_loss(model(mixed), wanted).backward()
            optimizer.step()
        return model

    task = surestep.Task(mlp(), nn.MSELoss(), data, batch_transform=batch_transforms.mixup(0.4))
    ours = train(task, folder(), micro_batch_size=5, **OPTIONS).model
    assert plain.distance(mixed_mse(mlp()), ours) <= 1e-6


def noisy(inputs, targets, generator):
    noise = torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)
    return inputs + 0.1 * noise + 0.1 * random.random() + 0.1 * torch.rand(()), targets


def check_own(folder: Folder) -> None:
    """Compare split and full batches under a transform that draws from three generators."""
    whole, cut = (
        train(
            surestep.Task(mlp(), nn.CrossEntropyLoss(), rows(), batch_transform=noisy),
            folder(),
            micro_batch_size=micro,
            **OPTIONS,
        ).model
        for micro in (16, 5)
    )
    assert plain.distance(whole, cut) <= 1e-6
    assert plain.distance(whole, mlp()) > 1e-2


def test_custom_transform_draws_for_the_full_batch(folder):
    check_own(folder)


def masked(inputs, targets):
    """Set some of the targets to the ignored label in place."""
    targets[torch.rand(targets.shape) < 0.4] = -100
    return inputs, targets


def test_targets_that_a_transform_ignores_are_not_items(folder):
    x, y = rows()
    batches = plain.shuffled(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    usual = mlp()
    optimizer = torch.optim.SGD(usual.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        inputs, targets = next(batches)
        seeded(step)
        inputs, targets = masked(inputs, targets.clone())
        optimizer.zero_grad()
        functional.cross_entropy(usual(inputs), targets).backward()
        optimizer.step()
    task = surestep.Task(mlp(), nn.CrossEntropyLoss(), (x, y), batch_transform=masked)
    ours = train(task, folder(), micro_batch_size=5, **OPTIONS).model
    assert plain.distance(usual, ours) <= 1e-6
