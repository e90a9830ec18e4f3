"""Models whose modules have their own train(): equal to a plain loop that evaluates as often."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import surestep
from surestep.engine.evaluate.input_gradients import input_gradients
from tests.engine.test_modes import Merging

torch.manual_seed(0)
X = torch.randn(150, 4)
Y = torch.where(X[:, :1] > 0, X[:, 1:2], -X[:, 2:3])
V, W = X.flip(1)[:61].contiguous(), Y[:61]
EPOCHS, SIZE = 3, 7


class Soft(nn.Module):
    """A choice with a temperature of 1 in training, and a sharp one in evaluation."""

    def __init__(self):
        super().__init__()
        self.gate, self.paths, self.temperature = nn.Linear(4, 3), nn.Linear(4, 3), 1.0

    def train(self, mode=True):
        super().train(mode)
        self.temperature = 1.0 if mode else 0.05
        return self

    def forward(self, x):
        return (self.paths(x) * (self.gate(x) / self.temperature).softmax(1)).sum(1, keepdim=True)


def merged(frozen=False):
    model = nn.Sequential(
        Merging(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 1)
    )
    model[0].weight.requires_grad_(not frozen)
    return model


def build(kind):
    torch.manual_seed(1)
    return Soft() if kind == "soft" else merged(frozen=kind == "frozen")


def train_plainly(net, keep=lambda net: None):
    """Return the validation loss after each epoch, and the weights while it trains."""
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    losses, states = [], []
    net.train()
    keep(net)
    for _ in range(EPOCHS):
        for first in range(0, len(X), SIZE):
            optimizer.zero_grad()
            F.mse_loss(net(X[first : first + SIZE]), Y[first : first + SIZE]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            losses.append(float(F.mse_loss(net(V), W)))
        net.train()
        keep(net)
        states.append(copy.deepcopy(net.state_dict()))
    return losses, states


def config(**options):
    return surestep.Config(
        batch_size=SIZE,
        max_grad_norm=None,
        optim={"name": "sgd", "lr": 0.1, "weight_decay": 0},
        schedule="constant",
        data={"shuffle": False},
        **{"epochs": EPOCHS, "logging": {"progress": "quiet"}, **options},
    )


def task(net, **parts):
    return surestep.Task(net, nn.MSELoss(), train=(X, Y), val=(V, W), **parts)


def recorded(run):
    return [e["metrics"]["val/loss"] for e in run.events() if e["event"] == "evaluation"]


def assert_same(state, other):
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in state.items())


@pytest.mark.parametrize("kind", ["soft", "merged", "frozen"])
def test_run_that_evaluates_equals_a_plain_loop_to_the_last_bit(tmp_path, kind):
    losses, states = train_plainly(build(kind))
    net = build(kind)
    run = surestep.Trainer(task(net), config(), run=tmp_path / "run").fit()
    assert recorded(run) == pytest.approx(losses, rel=1e-6)
    assert_same(net.state_dict(), states[-1])
    fresh = build(kind)
    run.load_model(fresh, which="last")
    assert_same(fresh.state_dict(), states[-1])


def test_part_kept_in_eval_mode_stays_so_between_evaluations(tmp_path):
    losses, states = train_plainly(merged_pair(), lambda net: net[0].eval())
    run = surestep.Trainer(kept_task(merged_pair()), config(), run=tmp_path / "run").fit()
    assert recorded(run) == pytest.approx(losses, rel=1e-6)
    fresh = merged_pair()
    run.load_model(fresh, which="last")
    assert_same(fresh.state_dict(), states[-1])


def kept_task(net):
    return task(net, keep_eval=[net[0]])


def merged_pair():
    torch.manual_seed(1)
    return nn.Sequential(Merging(4, 16), nn.Tanh(), Merging(16, 1))


def test_evaluations_between_steps_call_train_of_the_model():
    net = build("soft")
    with surestep.prepare(task(net), config(max_steps=4, epochs=None), run=None) as session:
        assert net.temperature == 1.0  # after the checks
        for _ in session.steps():
            session.evaluate()
            assert net.temperature == 1.0
            session.predict("val")
            assert net.temperature == 1.0
            input_gradients(net, X[:3])
            assert net.temperature == 1.0


def test_monte_carlo_dropout_merges_weights():
    net = build("merged")
    net[3].p = 0.5
    with surestep.prepare(task(net), config(max_steps=2, epochs=None), run=None) as session:
        for _ in session.steps():
            pass
        found = session.predict("val", mc_dropout=200)
        assert (net[0].merged, net[3].training) == (False, True)
        exact = session.predict("val")
    assert abs(found["output"] - exact["output"]).mean() < 0.1


def test_average_is_evaluated_merged_and_stays_as_it_is():
    net = build("merged")
    options = config(max_steps=9, epochs=None, average={"kind": "ema", "decay": 0.5})
    with surestep.prepare(task(net), options, run=None) as session:
        for _ in session.steps():
            pass
        average = session.state.average
        before = {name: tensor.clone() for name, tensor in average.tensors.items()}
        own = copy.deepcopy(net.state_dict())
        value = session.evaluate()["val/loss"]
        assert_same(average.tensors, before)
        net.eval()  # by hand, so that the weights are merged
        assert session.evaluate("val")["val/loss"] == pytest.approx(value, rel=1e-6)
        net.train()
        other = build("merged")
        other.load_state_dict(own | before)
        other.eval()
        with torch.no_grad():
            assert value == pytest.approx(float(F.mse_loss(other(V), W)), rel=1e-6)


def test_resumed_run_of_a_frozen_base_that_is_merged_is_bitwise_the_same(tmp_path):
    options = {"checkpoint": {"weights": "trained"}}
    whole = build("frozen")
    surestep.Trainer(task(whole), config(**options), run=tmp_path / "whole").fit()
    surestep.Trainer(task(build("frozen")), config(epochs=2, **options), run=tmp_path / "a").fit()
    net = build("frozen")
    surestep.Trainer(task(net), config(**options), run=tmp_path / "a").fit()
    assert_same(net.state_dict(), whole.state_dict())


def test_statistics_of_an_average_are_computed_in_train_mode():
    net = build("merged")
    average = {"kind": "swa", "start": 2, "buffers": "recompute"}
    with surestep.prepare(
        task(net), config(max_steps=9, epochs=None, average=average), run=None
    ) as session:
        for _ in session.steps():
            pass
        value = session.evaluate("val")["val/loss"]
        assert not net[0].merged
        other = build("merged")
        tensors = session.state.average.tensors
        other.load_state_dict(net.state_dict() | tensors)
        batches = [X[first : first + SIZE] for first in range(0, len(X), SIZE)]
        torch.optim.swa_utils.update_bn(batches, other)
        other.eval()
        with torch.no_grad():
            assert value == pytest.approx(float(F.mse_loss(other(V), W)), rel=1e-5)


def test_batch_norm_kept_in_eval_mode_keeps_its_statistics_in_an_average():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8))
    net.append(nn.Linear(8, 1))
    kept = {"3.running_mean": torch.full((8,), 0.5), "3.running_var": torch.full((8,), 4.0)}
    net.load_state_dict(kept, strict=False)
    average = {"kind": "swa", "start": 2, "buffers": "recompute"}
    options = config(max_steps=4, epochs=None, average=average)
    with surestep.prepare(task(net, keep_eval=[net[3]]), options, run=None) as session:
        for _ in session.steps():
            pass
        value = session.evaluate("val")["val/loss"]
        other = copy.deepcopy(net)
        other.load_state_dict(net.state_dict() | session.state.average.tensors | kept)
    batches = [X[first : first + SIZE] for first in range(0, len(X), SIZE)]
    torch.optim.swa_utils.update_bn(batches, other[:2])
    with torch.no_grad():
        assert value == pytest.approx(float(F.mse_loss(other.eval()(V), W)), rel=1e-5)
