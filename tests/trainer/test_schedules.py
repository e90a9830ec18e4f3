"""Schedules in full runs: the values the optimizer gets, what is saved, what is retained."""

import pytest
import torch
from torch.optim import lr_scheduler

import surestep
from surestep.base.errors import ConfigError
from tests import tiny
from tests.tiny import fit, prepare


class Reports(surestep.Callback):
    """Record the learning rate and the momentum of each step."""

    def __init__(self):
        self.lr, self.momentum = [], []

    def on_step(self, state, result):
        group = state.optimizer.param_groups[0]
        self.lr.append(group["lr"])
        self.momentum.append(group["betas"][0] if "betas" in group else group["momentum"])


@pytest.mark.parametrize("optim", [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}])
def test_one_cycle_gives_the_learning_rate_and_momentum_of_torch(tmp_path, optim):
    seen, config = Reports(), {"optim": {**optim, "lr": 0.01}, "schedule": {"name": "one_cycle"}}
    task = tiny.task()
    surestep.Trainer(
        task, tiny.config(max_steps=20, **config), run=tmp_path, callbacks=[seen]
    ).fit()
    kind = torch.optim.AdamW if optim["name"] == "adamw" else torch.optim.SGD
    momentum = {} if optim["name"] == "adamw" else {"momentum": 0.9}
    plain = kind([torch.zeros(1, requires_grad=True)], lr=0.01, **momentum)
    scheduler = lr_scheduler.OneCycleLR(plain, 0.01, total_steps=20)
    expected = Reports()
    for step in range(20):
        group = plain.param_groups[0]
        expected.lr.append(group["lr"])
        expected.momentum.append(group["betas"][0] if "betas" in group else group["momentum"])
        plain.step()
        if step < 19:
            scheduler.step()
    assert seen.lr == pytest.approx(expected.lr, rel=1e-12)
    assert seen.momentum == pytest.approx(expected.momentum, rel=1e-12)


def test_one_cycle_without_a_momentum_is_rejected(tmp_path):
    said = {"optim": {"name": "sgd"}, "schedule": {"name": "one_cycle"}}
    with pytest.raises(ConfigError, match=r"Use optim\.momentum=0\.9 with optim\.name='sgd'"):
        prepare(tmp_path, **said)


PLATEAU = {
    **{"schedule": {"name": "reduce_on_plateau", "patience": 1, "factor": 0.5, "cooldown": 1}},
    **{"validation": {"every": "1 step"}, "optim": {"lr": 1.0}, "max_steps": 16},
}


def test_reduce_on_plateau_equals_torch_on_the_same_metrics_and_resumes(tmp_path):
    parts = {"val": tiny.data(8, seed=1)}
    run = fit(tmp_path / "whole", parts, **PLATEAU)
    rates = [lr for event in run.events() if event["event"] == "steps" for lr in event["lr"]]
    values = [e["metrics"]["val/loss"] for e in run.events() if e["event"] == "evaluation"]
    plain = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = lr_scheduler.ReduceLROnPlateau(plain, factor=0.5, patience=1, cooldown=1)
    expected = []
    for value in values:
        expected.append(plain.param_groups[0]["lr"])
        scheduler.step(value)
    assert rates == pytest.approx(expected, rel=1e-12)
    assert rates[-1] < 1.0
    halfway = {"val": tiny.data(8, seed=1), "model": tiny.model()}
    with prepare(tmp_path / "cut", halfway, **PLATEAU) as session:
        for result in session.steps():
            session.evaluate()
            if result.step == 9:
                session.save()
                break
    again = {"val": tiny.data(8, seed=1), "model": tiny.model()}
    with prepare(tmp_path / "cut", again, **PLATEAU) as session:
        assert session.state.plateau.best is not None
        for _ in session.steps():
            session.evaluate()
    gone_on = [e["lr"] for e in session.run.events() if e["event"] == "steps"]
    assert [lr for each in gone_on for lr in each] == rates


def test_reduce_on_plateau_starts_again_on_other_samples(tmp_path):
    """Their losses are far larger, and fall."""
    x, y = tiny.data(8, seed=1)
    with prepare(tmp_path, {"val": (x, y)}, **PLATEAU) as session:
        tiny.evaluate_twice(session)
        rate = session.state.optimizer.param_groups[0]["lr"]
    run = fit(tmp_path, {"val": (x, (y + 1) % 3)}, **PLATEAU)
    events = [event for event in run.events() if event.get("step", event.get("first", 0)) > 6]
    plain = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = lr_scheduler.ReduceLROnPlateau(plain, factor=0.5, patience=1, cooldown=1)
    expected = []
    for value in [e["metrics"]["val/loss"] for e in events if e["event"] == "evaluation"]:
        expected.append(plain.param_groups[0]["lr"])
        scheduler.step(value)
    rates = [lr for event in events if event["event"] == "steps" for lr in event["lr"]]
    assert rates == pytest.approx(expected, rel=1e-12)


def test_reduce_on_plateau_needs_evaluations(tmp_path):
    with pytest.raises(ConfigError, match="needs evaluations"):
        prepare(tmp_path, schedule={"name": "reduce_on_plateau"})


def test_weight_average_from_an_unknown_learning_rate_is_rejected(tmp_path):
    said = {"schedule": {"name": "reduce_on_plateau"}, "average": {"kind": "swa", "lr": 0.01}}
    with pytest.raises(ConfigError, match=r"average\.lr=0\.01 anneals from a learning rate"):
        prepare(tmp_path, {"val": tiny.data(8)}, **said)


def test_checkpoint_at_the_end_of_each_cycle_is_retained_on_request(tmp_path):
    said = {"schedule": {"name": "cosine_restarts", "cycles": 4}, "max_steps": 12}
    said |= {"checkpoint": {"every": "5 steps", "keep_last": 1, "keep_best": 0}}
    assert fit(tmp_path / "not", **said).cycles == []
    said["schedule"]["save_cycles"] = True
    run = fit(tmp_path / "kept", **said)
    assert [(each.step, each.cycle) for each in run.cycles] == [(3, 1), (6, 2), (9, 3), (12, 4)]
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    assert kept == [f"step-{step:08d}" for step in (3, 6, 9, 12)]


def test_end_of_a_cycle_is_saved_at_the_step_that_ends_it_if_steps_were_skipped(tmp_path):
    """Steps 2 and 5 have no items: the third, sixth and ninth update are those of 4, 8 and 11."""
    x, y = tiny.data(96)
    y[8:16] = y[32:40] = -100
    options = {"schedule": {"name": "cosine_restarts", "cycles": 4, "save_cycles": True}}
    options |= {"checkpoint": {"every": "5 steps", "keep_last": 1, "keep_best": 0}}
    run = fit(tmp_path, {"train": (x, y)}, max_steps=12, data={"shuffle": False}, **options)
    assert [(saved.step, saved.cycle) for saved in run.cycles] == [(4, 1), (8, 2), (11, 3)]
    kept = sorted(path.name for path in run.checkpoints.iterdir())
    assert kept == [f"step-{step:08d}" for step in (4, 8, 11, 12)]


def test_custom_function_gives_the_learning_rate(tmp_path):
    run = fit(tmp_path, {"schedule": lambda taken, total: 1 / (1 + taken)}, max_steps=4)
    rates = [lr for event in run.events() if event["event"] == "steps" for lr in event["lr"]]
    assert rates == [1e-3 / (1 + step) for step in range(4)]
