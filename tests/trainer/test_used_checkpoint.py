"""A checkpoint is evaluated with all its weights and buffers, and with those of the loss."""

import copy

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import CheckpointError
from surestep.record.run import Run
from surestep.trainer.evaluator import evaluate_run, predict_run
from surestep.trainer.model_template import ModelTemplate
from tests.engine.test_modes import Merging

torch.manual_seed(0)
X, Y = torch.randn(97, 4) + 3, torch.randn(97, 1)


class Net(nn.Module):
    """Subtracts a running mean of the inputs, which no state_dict holds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.norm = Merging(4, 1), nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.register_buffer("table", torch.ones(4), persistent=False)
        self.register_buffer("last", None, persistent=False)

    def forward(self, x):
        if self.training:
            self.mean = torch.lerp(self.mean, x.detach().mean(0), 0.1)
            self.last = x.detach().mean()
        return self.linear((self.norm(x) - self.mean) * self.table)


class Scaled(nn.Module):
    """Divides by a running mean of the loss, whatever the mode."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("steps", None)

    def forward(self, outputs, targets):
        loss = nn.functional.mse_loss(outputs, targets)
        if torch.is_grad_enabled():
            self.scale = 0.5 * self.scale + 7 * loss.detach()
            self.steps = torch.ones(())
        return loss / self.scale


def a_task(**parts):
    usual = {"train": (X, Y), "val": (X[:40], Y[:40]), "test": (X[40:], Y[40:])}
    return surestep.Task(Net(), Scaled(), **{**usual, **parts})


def a_config(**options):
    usual = {"epochs": 3, "batch_size": 7, "optim": {"lr": 0.02}, "max_grad_norm": None}
    return surestep.Config(
        **{**usual, "schedule": "constant", "logging": {"progress": "quiet"}, **options},
        validation={"metric": "val/loss", "mode": "max"},
    )


AVERAGE = {"average": {"kind": "ema", "decay": 0.8, "buffers": "average"}}


def trained(folder, **options):
    run = surestep.Trainer(a_task(), a_config(**options), run=folder).fit()
    by_step = {e["step"]: e["metrics"] for e in run.events() if e["event"] == "evaluation"}
    assert run.best.step != run.last.step
    return run, by_step


def loss_of(model):
    """Return the mean squared error in eval mode, computed by hand."""
    model.eval()
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(X[:40]), Y[:40]))


@pytest.mark.parametrize("options", [{}, AVERAGE], ids=["weights", "average"])
@pytest.mark.parametrize("which", ["best", "last"])
def test_metrics_of_a_checkpoint_are_those_the_run_recorded(tmp_path, options, which):
    run, by_step = trained(tmp_path, **options)
    if options and which == "last":
        which = "average"  # what was evaluated
    step = (run.best if which == "best" else run.last).step
    found = evaluate_run(run, a_task(), a_config(**options), split="val", which=which)[1]
    assert found == by_step[step]
    with surestep.prepare(a_task(), a_config(**options), run=tmp_path) as session:
        assert session.evaluate_checkpoint("val", which) == by_step[step]
    scale = by_step[step]["val/loss"] / loss_of(loaded(run, which))
    predicted = predict_run(run, a_task(), a_config(**options), split="val", which=which)[1]
    error = torch.from_numpy(predicted["output"] - predicted["target"]).square().mean()
    assert float(error) * scale == pytest.approx(by_step[step]["val/loss"], rel=1e-5)


def loaded(run, which):
    model = Net()
    run.load_model(model, which=which)
    return model


def test_model_in_eval_mode_gets_the_weights_as_it_would_in_train_mode(tmp_path):
    run, _ = trained(tmp_path)
    expected = loss_of(loaded(run, "best"))
    model = Net().eval()
    run.load_model(model, which="best")
    assert model.linear.merged
    assert loss_of(model) == pytest.approx(expected, rel=1e-6)
    template = ModelTemplate(Net().eval())
    assert loss_of(template.load(run)) == pytest.approx(expected, rel=1e-6)


def test_open_run_is_bitwise_the_same_after_a_checkpoint_was_used(tmp_path):
    run, _ = trained(tmp_path)
    with surestep.prepare(a_task(), a_config(epochs=4), run=tmp_path) as session:
        next(iter(session.steps()))
        loss = session.loop.context.loss.module
        model = session.model
        for mode in (True, False):
            model.train(mode)
            tensors = every_tensor(model), every_tensor(loss)
            session.evaluate_checkpoint("val", "best")
            session.predict("val", "best")
            assert_same(every_tensor(model), tensors[0])
            assert_same(every_tensor(loss), tensors[1])
            assert model.linear.merged is not mode
    assert run.best.step != session.state.progress.step


def every_tensor(module):
    return copy.deepcopy(dict((*module.named_parameters(), *module.named_buffers())))


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_buffer_that_the_checkpoint_has_not_gets_its_first_value(tmp_path):
    config = a_config(max_steps=9, epochs=None)
    with surestep.prepare(a_task(), config, run=tmp_path) as session:
        session.save()
        first = session.evaluate("val")["val/loss"]
        for _ in session.steps():
            pass
        assert session.evaluate("val")["val/loss"] != first
        assert session.evaluate_checkpoint("val", "last")["val/loss"] == first


def test_kept_module_with_merged_weights_is_evaluated_as_it_trained(tmp_path):
    def kept():
        net = Net()
        return surestep.Task(
            net, nn.MSELoss(), train=(X, Y), val=(X[:40], Y[:40]), keep_eval=[net.linear]
        )

    run = surestep.Trainer(kept(), a_config(), run=tmp_path).fit()
    found = evaluate_run(run, kept(), a_config(), split="val", which="last")[1]
    last = [e["metrics"] for e in run.events() if e["event"] == "evaluation"][-1]
    assert found["val/loss"] == pytest.approx(last["val/loss"], rel=1e-6)


def test_loss_with_other_buffers_is_rejected(tmp_path):
    class Other(Scaled):
        def __init__(self):
            super().__init__()
            del self.scale
            self.register_buffer("factor", torch.ones(()))

    run, _ = trained(tmp_path)
    task = surestep.Task(Net(), Other(), train=(X, Y), val=(X[:40], Y[:40]))
    with pytest.raises(CheckpointError, match="has the buffers scale, steps of a loss"):
        evaluate_run(Run(run.path), task, a_config(), split="val", which="last")
