"""Law 3 under fp16: clipping sees unscaled gradients, as in torch's recipe."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import surestep
from tests.laws.support.plain import distance
from tests.laws.support.tasks import mlp, rows, session_of

BATCH, STEPS, LR, SCALE = 11, 10, 0.5, 1024.0


def plain_loop(clip: Callable[[nn.Module], float]) -> tuple[nn.Module, list[float]]:
    """Train as in torch's mixed-precision examples; return the model and the norms."""
    model, (x, y) = mlp(), rows()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    norms = []
    for step in range(STEPS):
        part = slice(step % 5 * BATCH, (step % 5 + 1) * BATCH)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norms.append(clip(model))
        scaler.step(optimizer)
        scaler.update()
    return model, norms


def by_norm(model: nn.Module) -> float:
    return float(clip_grad_norm_(model.parameters(), 0.05))


def by_value(model: nn.Module) -> float:
    norm = float(
        torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
    )
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.001)
    return norm


CLIPS: dict[str, tuple[dict[str, Any], Callable[[nn.Module], float]]] = {
    "norm": ({"max_grad_norm": 0.05}, by_norm),
    "value": ({"max_grad_norm": "off", "clip_value": 0.001}, by_value),
}


def check_clip(folder: Callable[[], Path], name: str = "norm") -> None:
    """Compare weights and norms with the plain loop's; every step is clipped."""
    options, clip = CLIPS[name]
    plain, wanted = plain_loop(clip)
    unscaled, _ = plain_loop(lambda model: 0.0)
    assert distance(plain, unscaled) > 0.1  # clipping decides the result
    model, norms = mlp(), []
    task = surestep.Task(model, nn.CrossEntropyLoss(), train=rows())
    with session_of(
        task,
        folder(),
        max_steps=STEPS,
        batch_size=BATCH,
        precision="fp16",
        data={"shuffle": False},
        scaler={"init_scale": SCALE},
        optim={"name": "sgd", "lr": LR, "momentum": 0.0, "weight_decay": 0.0},
        schedule={"name": "constant"},
        **options,
    ) as session:
        for result in session.steps():
            norms.append(float(result.grad_norm))
    assert norms == pytest.approx(wanted, rel=1e-2)  # in fp16 backward from 1/items rounds apart
    assert distance(plain, model) <= 1e-3


@pytest.mark.parametrize("name", CLIPS)
def test_clipping_with_a_loss_scale_equals_torchs_recipe(folder, name):
    check_clip(folder, name)
