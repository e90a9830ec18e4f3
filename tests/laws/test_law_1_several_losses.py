"""Laws 1, 2, 3 and 5 for several losses, each a mean over its own items.

A segmentation mask with ignored pixels, a class with weights, and an optional box. The plain loop
adds torch's mean losses on the full batch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import surestep
from surestep.base.errors import NonFiniteError
from tests.laws.support.plain import distance, order_of, two_groups
from tests.laws.support.tasks import assert_moved, assert_same, session_of, snapshot, train
from tests.laws.test_law_6_no_stall import watch_the_step

Folder = Callable[[], Path]
LIMIT = {torch.float32: 1e-6, torch.float64: 1e-12}
STEPS, BATCH, SAMPLES, IGNORED = 14, 10, 44, 255
CLASS_WEIGHT = torch.tensor([0.3, 1.0, 2.0])
WEIGHTS = {"mask": 0.5, "box": 3.0}
HEADS = ("mask", "kind", "box")


class Heads(nn.Module):
    """Maps an image to a class for each of five pixels, a class, and a box."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 16)
        self.mask = nn.Linear(16, 3 * 5)
        self.kind = nn.Linear(16, 3)
        self.box = nn.Linear(16, 4)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        mask = self.mask(hidden).unflatten(1, (3, 5))
        return {"mask": mask, "kind": self.kind(hidden), "box": self.box(hidden)}


def net(dtype: torch.dtype = torch.float32, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return Heads().to(dtype)


def data(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Uneven masks; the second batch ignores all pixels, and the third has no box."""
    generator = torch.Generator().manual_seed(2)
    mask = torch.randint(0, 3, (SAMPLES, 5), generator=generator)
    mask[torch.rand(SAMPLES, 5, generator=generator) < 0.4] = IGNORED
    has_box = torch.rand(SAMPLES, generator=generator) < 0.4
    order = order_of(SAMPLES, 0, 0)
    mask[order[:3]] = IGNORED
    mask[order[BATCH : 2 * BATCH]] = IGNORED
    has_box[order[2 * BATCH : 3 * BATCH]] = False
    return {
        "x": torch.randn(SAMPLES, 10, generator=generator, dtype=dtype),
        "mask": mask,
        "kind": torch.randint(0, 3, (SAMPLES,), generator=generator),
        "box": torch.randn(SAMPLES, 4, generator=generator, dtype=dtype),
        "has_box": has_box,
    }


def inputs(batch: dict[str, Any]) -> tuple[Any, Any]:
    targets = {"mask": batch["mask"], "kind": batch["kind"]}
    return batch["x"], targets | {"box": (batch["box"], batch["has_box"])}


def box_loss(outputs, targets):
    """A mean over boxes: NaN without boxes."""
    boxes, there = targets
    return functional.l1_loss(outputs[there], boxes[there])


def boxes(batch: dict[str, Any]) -> int:
    return int(batch["has_box"].sum())


def losses_of(dtype: torch.dtype) -> dict[str, Any]:
    mask = surestep.losses.multiclass(ignore_index=IGNORED)
    return {"mask": mask, "kind": nn.CrossEntropyLoss(CLASS_WEIGHT.to(dtype)), "box": box_loss}


def task_of(
    model: nn.Module | None = None, dtype: torch.dtype = torch.float32, **more: Any
) -> surestep.Task:
    parts: dict[str, Any] = {"loss": losses_of(dtype), "train": data(dtype), "inputs": inputs}
    parts |= {"items": {"box": boxes}, "loss_weights": WEIGHTS}
    return surestep.Task(model or net(dtype), **parts | more)


def plain_means(outputs, batch) -> dict[str, torch.Tensor]:
    """Return the means of torch's losses on a full batch, for losses that have items."""
    weight = CLASS_WEIGHT.to(batch["x"].dtype)
    means = {"kind": functional.cross_entropy(outputs["kind"], batch["kind"], weight)}
    if (batch["mask"] != IGNORED).any():
        means["mask"] = functional.cross_entropy(
            outputs["mask"], batch["mask"], ignore_index=IGNORED
        )
    if batch["has_box"].any():
        means["box"] = box_loss(outputs["box"], (batch["box"], batch["has_box"]))
    return means


def total_of(means: dict[str, torch.Tensor]) -> torch.Tensor:
    return sum(WEIGHTS.get(name, 1.0) * mean for name, mean in means.items())


def plain_loop(model: nn.Module, dtype: torch.dtype) -> list[dict[str, float]]:
    """Train a plain loop; return the losses of each step."""
    optimizer = torch.optim.AdamW(two_groups(model, 0.01), lr=1e-3, fused=True)
    every, found, epoch = data(dtype), [], 0
    while True:
        order = order_of(SAMPLES, 0, epoch)
        for start in range(0, SAMPLES, BATCH):
            batch = {name: tensor[order[start : start + BATCH]] for name, tensor in every.items()}
            means = plain_means(model(batch["x"]), batch)
            optimizer.zero_grad()
            total_of(means).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            found.append({name: float(mean.detach()) for name, mean in means.items()})
            if len(found) == STEPS:
                return found
        epoch += 1


def check_cut(
    folder: Folder, micro_batch_size: int = 3, dtype: torch.dtype = torch.float32
) -> None:
    """Compare weights and every logged loss with the plain loop on full batches."""
    plain = net(dtype)
    found = plain_loop(plain, dtype)
    assert "mask" not in found[1]
    assert "box" not in found[2]
    options: dict[str, Any] = {"batch_size": BATCH, "micro_batch_size": micro_batch_size}
    session = train(task_of(dtype=dtype), folder(), max_steps=STEPS, **options)
    assert distance(plain, session.model) <= LIMIT[dtype]
    events = [event for event in session.run.events() if event["event"] == "steps"]
    for name in HEADS:
        logged = [value for event in events for value in event["logged"][f"loss_{name}"]]
        wanted = [losses.get(name) for losses in found]
        assert [value is None for value in logged] == [value is None for value in wanted]
        assert [v for v in logged if v is not None] == pytest.approx(
            [v for v in wanted if v is not None], rel=1e-5
        )
    total = [value for event in events for value in event["loss"]]
    assert total == pytest.approx([total_of(losses) for losses in found], rel=1e-5)


@pytest.mark.parametrize("dtype", LIMIT, ids=["fp32", "fp64"])
@pytest.mark.parametrize("micro_batch_size", [BATCH, 5, 3, 1])
def test_law_1_every_micro_batch_size_gives_the_usual_loop(folder, micro_batch_size, dtype):
    check_cut(folder, micro_batch_size, dtype)


def test_law_2_resumed_run_equals_an_uninterrupted_run(folder):
    options: dict[str, Any] = {"max_steps": STEPS, "batch_size": BATCH, "micro_batch_size": 3}
    whole, run = train(task_of(), folder(), **options), folder()
    with session_of(task_of(), run, **options) as session:
        for result in session.steps():
            if result.step == 7:
                session.save()
                half = snapshot(session)
                break
    with session_of(task_of(net(seed=99)), run, **options) as session:
        assert [result.step for result in session.steps()] == list(range(8, STEPS + 1))
    assert_same(snapshot(whole), snapshot(session))
    assert_moved(half, snapshot(session))
    assert whole.state.progress == session.state.progress


def nan_box(step: int) -> dict[str, torch.Tensor]:
    """Corrupt a box in one step, counted from 1."""
    every = data()
    rows = order_of(SAMPLES, 0, 0)[(step - 1) * BATCH : step * BATCH]
    every["box"][rows[every["has_box"][rows]][0]] = torch.nan
    return every


def test_law_5_one_nonfinite_loss_skips_the_step_of_all(folder):
    task = task_of(train=nan_box(2))
    options: dict[str, Any] = {"max_steps": 4, "batch_size": BATCH, "on_nonfinite": "skip"}
    with session_of(task, folder(), **options) as session:
        kept = []
        for result in session.steps():
            kept.append(snapshot(session))
            assert bool(result.took_step) == (result.step != 2)
    assert_same(kept[0], kept[1])
    assert_moved(kept[1], kept[2])
    assert session.state.counts.nonfinite == 1


def test_law_5_nonfinite_loss_fails_the_run_at_its_step(folder):
    options: dict[str, Any] = {"max_steps": 4, "batch_size": BATCH}
    with (
        pytest.raises(NonFiniteError, match=r"Step 2 was not finite"),
        session_of(task_of(train=nan_box(2)), folder(), **options) as session,
    ):
        list(session.steps())


def test_law_5_batch_without_items_updates_nothing(folder):
    every = data()
    rows = order_of(SAMPLES, 0, 0)[BATCH : 2 * BATCH]
    every["kind"][rows], every["has_box"][rows] = -100, False
    options: dict[str, Any] = {"max_steps": 3, "batch_size": BATCH, "micro_batch_size": 3}
    with session_of(task_of(train=every), folder(), **options) as session:
        steps = session.steps()
        next(steps)
        before = snapshot(session)
        assert not bool(next(steps).took_step)
        assert_same(before, snapshot(session))
        assert bool(next(steps).took_step)
        steps.close()


def test_law_6_step_reads_no_device_value(folder, monkeypatch):
    """The box loss reads the device because it indexes by a mask; the others do not."""
    found = watch_the_step(monkeypatch)
    losses = {name: loss for name, loss in losses_of(torch.float32).items() if name != "box"}
    task = task_of(loss=losses, items={}, loss_weights={"mask": 0.5})
    options: dict[str, Any] = {"batch_size": BATCH, "micro_batch_size": 3}
    train(task, folder(), max_steps=8, logging={"every": "20 steps"}, **options)
    assert found == [[]] * 8


@pytest.mark.parametrize("size", [1, 7, 100])
def test_evaluation_is_the_mean_over_all_data(folder, size):
    task = task_of(val={"val": data()})
    options: dict[str, Any] = {"validation": {"batch_size": size}}
    with session_of(task, folder(), max_steps=1, **options) as session:
        found = session.evaluate("val")
    means = plain_means(net()(data()["x"]), data())
    wanted = {f"val/loss_{name}": float(mean.detach()) for name, mean in means.items()}
    wanted["val/loss"] = float(total_of(means).detach())
    assert found == pytest.approx(wanted, rel=1e-6)
