"""A task whose loss jumps because of some corrupted data, and a plain loop for it."""

from collections.abc import Container

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import surestep
from tests.laws.support.plain import order_of, two_groups

BATCH, STEPS = 8, 120
SAMPLES = BATCH * STEPS
CORRUPTED = range(71, 76)  # steps
EXCLUDED = range(70, 78)  # starts with the step before the spike
LR, DECAY = 0.01, 0.01


def data(corrupted: range = CORRUPTED) -> tuple[Tensor, Tensor]:
    """Return two separable classes; inputs of some steps are a thousand times too large."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 6, generator=generator)
    y = (x[:, 0] + x[:, 1] > 0).long()
    order = order_of(SAMPLES, 0, 0)
    for step in corrupted:
        x[order[(step - 1) * BATCH : step * BATCH]] *= -1000.0
    return x, y


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    hidden = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(dropout))
    return nn.Sequential(hidden, nn.Linear(16, 2))


def task_of(corrupted: range = CORRUPTED, *, dropout: float = 0.0) -> surestep.Task:
    x, y = data(corrupted)
    return surestep.Task(net(dropout), nn.CrossEntropyLoss(), (x, y), val=data(range(0)))


def plain_run(without: Container[int] = (), corrupted: range = CORRUPTED) -> nn.Module:
    """Train a plain loop without some of the steps."""
    model, (x, y) = net(), data(corrupted)
    optimizer = torch.optim.AdamW(two_groups(model, DECAY), lr=LR, fused=True)
    for step, batch in enumerate(order_of(SAMPLES, 0, 0).split(BATCH), 1):
        if step in without:
            continue
        optimizer.zero_grad()
        loss_sum = cross_entropy(model(x[batch]), y[batch], reduction="sum")
        torch.autograd.backward(loss_sum, torch.full((), 1 / BATCH))
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def loss_on_clean_data(model: nn.Module) -> float:
    x, y = data(range(0))
    with torch.no_grad():
        return float(cross_entropy(model.eval()(x), y))
