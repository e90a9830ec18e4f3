"""Law 3 for averages: they equal torch's AveragedModel, and evaluations use the average."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import (
    SWALR,
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)

import surestep
from surestep.base.errors import NonFiniteError
from tests.laws.support import plain
from tests.laws.support.nonfinite_tasks import bomb
from tests.laws.support.tasks import QUIET, assert_same, rows, session_of, snapshot

Folder = Callable[[], Path]
SAMPLES, BATCH, STEPS = 48, 8, 18  # six steps an epoch
ACCURACY = {"accuracy": lambda outputs, y: (outputs.argmax(1) == y).float().mean()}


def net() -> nn.Module:
    torch.manual_seed(1)
    hidden = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU())
    return nn.Sequential(hidden, nn.Linear(16, 3))


def plain_run(
    averaged: Callable[[nn.Module], AveragedModel],
    *,
    start: int = 0,
    every: int = 1,
    swa_lr: float | None = None,
    anneal: int = 0,
) -> AveragedModel:
    """Train a plain loop that updates the average after each step."""
    model, (x, y) = net(), rows(SAMPLES)
    average = averaged(model)
    optimizer = torch.optim.AdamW(plain.two_groups(model, 0.01), lr=1e-2, fused=True)
    own = None
    for step in range(STEPS):
        if step == start and swa_lr is not None:
            own = SWALR(optimizer, swa_lr, anneal_epochs=anneal)
        order = plain.order_of(SAMPLES, 0, step // 6)
        batch = order[step % 6 * BATCH : (step % 6 + 1) * BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch], reduction="sum").div(
            BATCH
        ).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if own is not None:
            own.step()
        if step >= start and (step + 1 - start) % every == 0:
            average.update_parameters(model)
    return average


def our_run(folder: Path, **average: Any) -> surestep.Run:
    task = surestep.Task(net(), nn.CrossEntropyLoss(), rows(SAMPLES), rows(20), metrics=ACCURACY)
    config = surestep.Config(
        max_steps=STEPS, batch_size=BATCH, optim={"lr": 1e-2}, average=average, logging=QUIET
    )
    return surestep.Trainer(task, config, run=folder).fit()


def loaded(run: surestep.Run, which: Any) -> nn.Module:
    model = net()
    run.load_model(model, which)
    return model


def assert_equal(ours: nn.Module, average: AveragedModel, *, buffers: bool = True) -> None:
    theirs = average.module.state_dict()
    for name, value in ours.state_dict().items():
        if buffers or name in dict(ours.named_parameters()):
            torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-7, msg=name)


def check_ema(folder: Folder) -> None:
    """EMA equals torch's, with averaged buffers and with the model's buffers."""
    for use_buffers in (True, False):
        average = plain_run(
            lambda model, use=use_buffers: AveragedModel(
                model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=use
            )
        )
        kind = "average" if use_buffers else "copy"
        run = our_run(folder(), kind="ema", decay=0.8, warmup=False, buffers=kind)
        ours = loaded(run, "average")
        average.module[0][1].num_batches_tracked = ours[0][1].num_batches_tracked
        assert_equal(ours, average)


def test_ema_equals_torchs_averaged_model(folder):
    check_ema(folder)


def test_ema_every_few_steps_from_a_start_equals_torchs(folder):
    ema = get_ema_multi_avg_fn(0.8)
    average = plain_run(lambda model: AveragedModel(model, multi_avg_fn=ema), start=4, every=3)
    settings = {"start": "4 steps", "every": "3 steps", "warmup": False, "buffers": "copy"}
    ours = loaded(our_run(folder(), kind="ema", decay=0.8, **settings), "average")
    assert_equal(ours, average, buffers=False)


def check_swa(folder: Folder) -> None:
    """SWA with an annealed learning rate and recomputed BatchNorm statistics."""
    average = plain_run(
        lambda model: AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn()),
        **{"start": 6, "every": 6, "swa_lr": 2e-2, "anneal": 4},
    )
    x, _ = rows(SAMPLES)
    update_bn((x[rows] for rows in plain.order_of(SAMPLES, 0, 0).split(BATCH)), average.module)
    settings = {"start": "6 steps", "lr": 2e-2, "anneal": "4 steps"}
    assert_equal(loaded(our_run(folder(), kind="swa", **settings), "average"), average)


def test_swa_equals_torchs_with_its_rate_and_statistics(folder):
    check_swa(folder)


def test_ema_with_warmup_equals_the_documented_sum(folder):
    history: list[torch.Tensor] = []

    class Keep(surestep.Callback):
        def on_step(self, state, result):
            history.append(state.model[1].weight.detach().clone())

    task = surestep.Task(net(), nn.CrossEntropyLoss(), rows(SAMPLES))
    options = {"max_steps": STEPS, "batch_size": BATCH, "average": {"kind": "ema", "decay": 0.5}}
    with session_of(task, folder(), callbacks=[Keep()], **options) as session:
        list(session.steps())
        ours = session.state.average.tensors["1.weight"]
    expected = history[0]
    for n, weight in enumerate(history[1:], start=1):
        decay = min(0.5, (1 + n) / (10 + n))
        expected = decay * expected + (1 - decay) * weight
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_metrics_are_of_the_average_and_best_loads_it(folder, kind):
    run = our_run(folder(), kind=kind, start="6 steps" if kind == "swa" else "50%")
    assert run.best.evaluated == "average"
    best, (x, y) = loaded(run, "best").eval(), rows(20)
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(best(x), y))
    assert loss == pytest.approx(run.best.metrics["val/loss"], rel=1e-5)
    raw, average = loaded(run, "last"), loaded(run, "average")
    assert plain.distance(raw, average) > 1e-4
    measured = [event["measured"] for event in run.events() if event["event"] == "evaluation"]
    assert measured == ["weights", "average", "average"]


def test_evaluation_restores_the_raw_weights(folder):
    task = surestep.Task(net(), nn.CrossEntropyLoss(), rows(SAMPLES), rows(20))
    options = {"max_steps": STEPS, "batch_size": BATCH, "average": {"kind": "swa", "start": "0"}}
    with session_of(task, folder(), **options) as session:
        for result in session.steps():
            if result.step % 4 == 0:
                held = snapshot(session)
                addresses = [parameter.data_ptr() for parameter in session.model.parameters()]
                session.evaluate()
                now = snapshot(session)
                weights = [name for name in held if not name.startswith("average/")]
                assert_same({n: held[n] for n in weights}, {n: now[n] for n in weights})
                assert addresses == [
                    parameter.data_ptr() for parameter in session.model.parameters()
                ]
        session.save()
        watched = snapshot(session)
    with session_of(task_again(), folder(), **options) as session:
        list(session.steps())
        session.save()
        assert_same(watched, snapshot(session))


def task_again() -> surestep.Task:
    return surestep.Task(net(), nn.CrossEntropyLoss(), rows(SAMPLES), rows(20))


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_nonfinite_step_does_not_change_the_average(folder, kind):
    average = {"kind": kind, "start": "0", "every": "1 step", "buffers": "copy"}
    options = {"max_steps": 12, "batch_size": 8, "logging": {"every": "50 steps"}}
    with session_of(bomb("both", [5]), folder(), average=average, **options) as session:
        for result in session.steps():
            if result.step == 4:
                held = snapshot(session)
                break
    with session_of(bomb("both", [5]), folder(), average=average, **options) as session:
        with pytest.raises(NonFiniteError, match="Step 5 "):
            list(session.steps())
        assert_same(held, snapshot(session))


def test_half_precision_weights_are_averaged_in_fp32(folder):
    task = surestep.Task(
        net().bfloat16(), nn.CrossEntropyLoss(), (rows(48)[0].bfloat16(), rows(48)[1])
    )
    options = {"max_steps": 6, "batch_size": BATCH, "average": {"kind": "ema"}}
    with session_of(task, folder(), **options) as session:
        list(session.steps())
        assert {tensor.dtype for tensor in session.state.average.tensors.values()} == {
            torch.float32
        }
        with session.state.average.swapped_in():
            assert {parameter.dtype for parameter in session.model.parameters()} == {torch.bfloat16}
