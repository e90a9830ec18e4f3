"""Losses of mixed samples: of both targets, or of mixed numbers, with and without a teacher."""

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_all, weights
from tests.twice.shaped import LABELS, NUMBERS, PER_LABEL, Shaped, X


def mixed(step: int, size: int) -> tuple[float, Tensor]:
    """Draw the share and the partners of a batch as the documentation describes it."""
    seed_all("transform", 0, step)
    share = random.betavariate(0.7, 0.7)
    return share, torch.randperm(size)


losses = surestep.losses
MIXED: dict[str, Any] = {
    "binary_ignored": (
        lambda: Shaped(5),
        losses.multilabel(pos_weight=2.0, ignore_index=-100, label_smoothing=0.1),
        torch.where(LABELS < 0, LABELS, LABELS.clamp(max=1)),
    ),
    "binary_soft": (lambda: Shaped(3), losses.multilabel(pos_weight=PER_LABEL), NUMBERS),
    "focal": (
        lambda: Shaped(3, 5),
        losses.focal(gamma=1.0, alpha=[0.2, 0.5, 0.9]),
        LABELS,
    ),
    "masked": (lambda: Shaped(5, 3), losses.masked_tokens(z_loss=0.02), LABELS),
    "dice_ce": (
        lambda: Shaped(3, 5),
        losses.dice_ce(ce=0.4),
        LABELS,
    ),
    "nll": (
        lambda: Shaped(3, 5, last=lambda x: x.log_softmax(2)),
        nn.NLLLoss(weight=PER_LABEL),
        LABELS,
    ),
    "multi_margin": (lambda: Shaped(3), nn.MultiMarginLoss(), LABELS.clamp(min=0)[:, 2]),
    "huber": (lambda: Shaped(3), losses.huber(delta=0.2), NUMBERS),
    "quantile": (lambda: Shaped(3, 2), losses.quantile(quantiles=(0.2, 0.9)), NUMBERS),
    "gaussian": (
        lambda: Shaped(3, parts=2, last=lambda x: x.square() + 0.1),
        nn.GaussianNLLLoss(),
        NUMBERS,
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_mixup_is_the_loss_of_both_targets_or_of_mixed_numbers(name: str) -> None:
    make, loss, targets = MIXED[name]
    net = make()
    ours = copy.deepcopy(net)
    pairs = not targets.is_floating_point()  # an ignored target stays ignored

    def mean(outputs: Any, wanted: Tensor) -> Tensor:
        if isinstance(loss, nn.GaussianNLLLoss):
            return loss(outputs[0], wanted, outputs[1])
        return loss(outputs, wanted)

    optimizer, plain, step = torch.optim.SGD(net.parameters(), lr=0.1), [], 0
    for _ in range(2):
        for x, y in in_batches(7, X, targets):
            share, partner = mixed(step, len(x))
            optimizer.zero_grad()
            outputs = net(share * x + (1 - share) * x[partner])
            if pairs:
                value = share * mean(outputs, y) + (1 - share) * mean(outputs, y[partner])
            else:
                value = mean(outputs, share * y + (1 - share) * y[partner])
            value.backward()
            optimizer.step()
            plain.append(value.item())
            step += 1
    task = surestep.Task(
        ours,
        loss,
        train=(X, targets),
        batch_transform=surestep.batch_transforms.mixup(0.7),
    )
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=3))
    found = [float(result.loss) for result in session.steps()]
    assert_same([plain, weights(net)], [found, weights(ours)])


def test_mixup_with_a_teacher_gives_it_the_mixed_inputs() -> None:
    torch.manual_seed(6)
    teacher = nn.Sequential(Shaped(3, 5), nn.Dropout(0.4)).double()
    still = copy.deepcopy(teacher).eval()
    net = Shaped(3, 5, last=torch.tanh)
    ours = copy.deepcopy(net)
    loss = losses.distillation(temperature=1.7, alpha=0.4, label_smoothing=0.2)
    optimizer, plain, step = torch.optim.SGD(net.parameters(), lr=0.1), [], 0
    for _ in range(2):
        for x, y in in_batches(7, X, LABELS):
            share, partner = mixed(step, len(x))
            blend = share * x + (1 - share) * x[partner]
            with torch.no_grad():
                taught = still(blend)
            optimizer.zero_grad()
            outputs = net(blend)
            value = share * loss(outputs, (y, taught))
            value = value + (1 - share) * loss(outputs, (y[partner], taught))
            value.backward()
            optimizer.step()
            plain.append(value.item())
            step += 1
    task = surestep.Task(
        ours,
        loss,
        teacher=teacher,
        train=(X, LABELS),
        batch_transform=surestep.batch_transforms.mixup(0.7),
    )
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=3))
    found = [float(result.loss) for result in session.steps()]
    assert_same([plain, weights(net)], [found, weights(ours)])
