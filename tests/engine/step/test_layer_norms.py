"""Norms by layer equal those of a plain PyTorch loop, and cost nothing but at log points."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

import surestep
from surestep.engine.step import step_log
from surestep.engine.step.layer_norms import LayerNormMeter
from surestep.laws.host_reads import host_reads
from tests.laws.support.tasks import assert_same, session_of, snapshot, train

STEPS, BATCH, MAX_NORM = 6, 12, 0.05


@pytest.fixture
def folder(tmp_path):
    count = iter(range(9))
    return lambda: tmp_path / f"run-{next(count)}"


class Net(nn.Module):
    """Layers in a block, and a parameter of the model itself."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(3)
        self.block = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
        self.scale = nn.Parameter(torch.ones(2))
        self.unused = nn.Linear(2, 2)
        self.to(dtype)

    def forward(self, x):
        return self.block(x) * self.scale


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * BATCH, 5, generator=generator, dtype=dtype)
    return x, x[:, :2].sin()


def plain():
    """Return the norms of each layer in each step, of a loop without surestep."""
    net, (x, y) = Net(), data()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)
    found = []
    for inputs, targets in zip(x.split(BATCH), y.split(BATCH), strict=True):
        before = {name: each.detach().clone() for name, each in net.named_parameters()}
        optimizer.zero_grad()
        functional.mse_loss(net(inputs), targets).backward()
        grads = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        clip_grad_norm_(net.parameters(), MAX_NORM)
        optimizer.step()
        after = dict(net.named_parameters())
        updates = {name: after[name].detach() - before[name] for name in before}
        found.append([layers(grads), layers(after), layers(updates)])
    return found


def layers(tensors):
    names = {"block.0": [], "block.2": [], "scale": [], "unused": []}
    for name, tensor in tensors.items():
        layer = next(layer for layer in names if name.startswith(layer))
        names[layer].append(float(tensor.detach().norm()))
    return {layer: math.hypot(*norms) for layer, norms in names.items() if norms}


class Points(surestep.Callback):
    def __init__(self):
        self.found = []

    def on_log(self, state, point):
        self.found.append(point)


def options(**more):
    return {
        **{"max_steps": STEPS, "batch_size": BATCH, "data": {"shuffle": False}},
        **{"optim": {"lr": 1e-2, "weight_decay": 0.1, "groups": ["* decay=0.1"]}},
        **{"schedule": {"name": "constant", "warmup": "0%"}, "max_grad_norm": MAX_NORM},
        **more,
    }


def task():
    return surestep.Task(Net, "mse", data())


@pytest.mark.parametrize("micro_batch_size", [BATCH, 5])
def test_norms_equal_those_of_plain_pytorch(folder, micro_batch_size):
    points = Points()
    logging = {"every": "2 steps", "per_layer": True}
    more = options(micro_batch_size=micro_batch_size, logging=logging)
    with session_of(task(), folder(), callbacks=[points], **more) as session:
        list(session.steps())
    expected = plain()
    assert [point.layers.step for point in points.found] == [2, 4, 6]
    for point in points.found:
        grads, weights, updates = expected[point.layers.step - 1]
        assert point.layers.grad_norm == pytest.approx(grads, rel=1e-9)
        assert point.layers.weight_norm == pytest.approx(weights, rel=1e-9)
        assert point.layers.update_norm == pytest.approx(updates, rel=1e-6, abs=1e-12)
        total = math.hypot(*point.layers.grad_norm.values())
        assert total == pytest.approx(point.grad_norm[-1])  # both before clipping
        assert total > MAX_NORM
    events = [event for event in session.run.events() if event["event"] == "steps"]
    assert [event["layers"]["update_norm"] for event in events] == [
        point.layers.update_norm for point in points.found
    ]


def test_training_is_bitwise_the_same(folder):
    alone = train(task(), folder(), **options())
    logging = {"every": "2 steps", "per_layer": True, "histograms": "2 steps", "graph": True}
    watched = train(task(), folder(), **options(logging=logging))
    assert_same(snapshot(alone), snapshot(watched))


def test_host_reads_nothing_between_log_points(folder):
    logging = {"every": "4 steps", "per_layer": True}
    with session_of(task(), folder(), **options(logging=logging)) as session:
        steps = session.steps()
        next(steps)
        for _ in range(2):
            with host_reads() as reads:
                next(steps)
            assert reads == []
        steps.close()


def test_log_point_reads_the_device_once(folder, monkeypatch):
    counts, read = [], step_log.read_scalars
    monkeypatch.setattr(step_log, "read_scalars", lambda v: counts.append(len(v)) or read(v))
    logging = {"every": "3 steps", "per_layer": True}
    train(task(), folder(), **options(logging=logging))
    gradients, parameters = 5, 7
    assert counts == [2 * 3 + gradients + 2 * parameters] * 2


def test_nothing_is_measured_between_log_points(folder, monkeypatch):
    measured, on_step = [], LayerNormMeter.on_step

    def note(meter, state, result):
        if meter._before is not None:
            measured.append(result.step)
        on_step(meter, state, result)

    monkeypatch.setattr(LayerNormMeter, "on_step", note)
    train(task(), folder(), **options(logging={"every": "4 steps", "per_layer": True}))
    assert measured == [4, 6]
    train(task(), folder(), **options(logging={"every": "4 steps"}))
    assert measured == [4, 6]
    within = options(max_steps=5, logging={"every": "4 steps", "per_layer": True})
    train(task(), folder(), **within)
    assert measured == [4, 6, 4, 5], "a run that ends within an epoch"


def test_last_step_of_each_epoch_is_measured(folder):
    points = Points()
    said = options(logging={"every": "100 steps", "per_layer": True}, max_steps=9)
    made = surestep.Task(Net, "mse", tuple(rows[: 4 * BATCH] for rows in data()))
    with session_of(made, folder(), callbacks=[points], **said) as session:
        list(session.steps())
    assert [point.layers.step for point in points.found] == [4, 8, 9]
    assert [point.epoch for point in points.found] == [0, 1, 2]


def test_skipped_step_has_no_update(folder):
    x, y = data()
    x[BATCH] = math.nan
    points = Points()
    skipping = {"on_nonfinite": "skip", "logging": {"every": "2 steps", "per_layer": True}}
    made = surestep.Task(Net, "mse", (x, y))
    with session_of(made, folder(), callbacks=[points], **options(**skipping)) as session:
        list(session.steps())
    assert set(points.found[0].layers.update_norm.values()) == {0.0}
    assert math.isnan(points.found[0].layers.grad_norm["block.0"])
    assert all(points.found[1].layers.update_norm[name] > 0 for name in ("block.0", "scale"))


def test_log_point_of_a_save_does_not_repeat_earlier_norms(folder):
    points = Points()
    logging = {"every": "2 steps", "per_layer": True}
    with session_of(task(), folder(), callbacks=[points], **options(logging=logging)) as session:
        for result in session.steps():
            if result.step == 3:  # not measured
                session.save()
    found = [(point.progress.step, point.layers and point.layers.step) for point in points.found]
    assert found == [(2, 2), (3, None), (4, 4), (6, 6)]
    events = [event for event in session.run.events() if event["event"] == "steps"]
    assert ["layers" in event for event in events] == [True, False, True, True]
