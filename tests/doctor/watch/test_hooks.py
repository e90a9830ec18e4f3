"""The hooks change nothing: not the result, not torch, and not even if a rule fails."""

import pytest
import torch
from torch import nn

from surestep.doctor.rule import load_rules
from surestep.doctor.watch.hooks import Monitor
from surestep.doctor.watch.watch import Watch
from surestep.doctor.watcher import Watcher


def train(steps=30):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(8, 4)
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()], torch.rand(3)


def functions_of_torch():
    return (
        *(torch.Tensor.backward, torch.optim.Optimizer.zero_grad, nn.Module.zero_grad),
        *(nn.utils.clip_grad_norm_, nn.functional.mse_loss, torch.amp.GradScaler.unscale_),
        *(torch.amp.GradScaler.scale, nn.utils.clip_grad.clip_grad_norm_),
    )


class Everything(Watcher):
    """Counts the calls of each method."""

    def __init__(self):
        self.calls = {}

    def _count(self, name):
        self.calls[name] = self.calls.get(name, 0) + 1

    def on_zero_grad(self, run, parameters):
        self._count("on_zero_grad")

    def on_backward(self, run, loss):
        self._count("on_backward")

    def on_clip(self, run, parameters, limit, norm):
        self._count("on_clip")

    def on_step(self, run, optimizer):
        self._count("on_step")

    def after_step(self, run, optimizer):
        self._count("after_step")

    def on_forward(self, run, module):
        self._count("on_forward")

    def on_loss(self, run, name, prediction, target):
        self._count(name)


class Failing(Watcher):
    """Raises an error at the third step."""

    def on_step(self, run, optimizer):
        if run.step == 2:
            raise RuntimeError("no")


def test_watched_training_is_bitwise_the_same_and_torch_is_restored():
    expected, drawn = train()
    before, results = functions_of_torch(), []
    watch = Watch(load_rules())
    watch.run(lambda: results.append(train()))
    ((found, drawn_when_watched),) = results
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert torch.equal(drawn, drawn_when_watched)
    assert functions_of_torch() == before
    assert watch.report().findings == []


def test_rules_are_called_for_each_part_of_a_step():
    counts = Everything()
    with Monitor({"SS000": counts}).installed():
        train(30)
    per_step = ("on_zero_grad", "on_backward", "on_clip", "on_step", "after_step", "mse_loss")
    assert {name: counts.calls[name] for name in per_step} == dict.fromkeys(per_step, 30)
    assert counts.calls["on_forward"] == 20 * 4, "the first 20 steps, four modules each"


def test_only_the_first_steps_are_watched_if_that_is_asked():
    counts = Everything()
    with Monitor({"SS000": counts}, most_steps=5).installed():
        train(30)
    assert counts.calls["on_step"] == counts.calls["on_backward"] == 5


def test_rule_that_fails_is_turned_off_and_the_others_continue():
    counts = Everything()
    monitor = Monitor({"SS000": counts, "SS999": Failing()})
    expected, _ = train()
    with monitor.installed():
        found, _ = train()
    assert monitor.failures == {"SS999": "RuntimeError: no"}
    assert counts.calls["on_step"] == 30
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_torch_is_restored_after_an_error_of_the_script():
    before = functions_of_torch()
    with pytest.raises(ValueError, match="bad"):
        Watch(load_rules()).run(lambda: int("bad"))
    assert functions_of_torch() == before
