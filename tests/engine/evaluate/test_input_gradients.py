import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import TaskError
from tests import tiny
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot, with_batchnorm


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))


def plain(model, x):
    """Compute the gradient as a plain script does: eval mode, a leaf, and autograd.grad."""
    model.eval()
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
    return grad


def second(outputs):
    return outputs[:, 1]


@pytest.mark.parametrize("within", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_input_gradients_equal_autograd_in_any_grad_mode(within):
    model = net()
    with within():
        x = tiny.data()[0]
        found = surestep.input_gradients(model, x, second)
    torch.testing.assert_close(found, plain(net(), tiny.data()[0]), rtol=0, atol=0)
    assert not x.requires_grad


def test_input_gradients_leave_the_model_and_random_state_unchanged():
    model, x = net(), tiny.data()[0]
    model[1].eval()
    model[0].weight.grad = torch.ones(6, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    surestep.input_gradients(model, x)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [module.training for module in model] == [True, False, True, True]
    assert torch.equal(model[0].weight.grad, torch.ones(6, 4))
    assert model[3].weight.grad is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Two(nn.Module):
    """A model with an index input and a float input, which returns two outputs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, x, index, other=None):
        return {"score": (x * self.table(index)).sum(1), "x": x}


def test_gradients_have_the_structure_of_the_inputs():
    torch.manual_seed(0)
    model, x, index = Two(), torch.randn(4, 3), torch.arange(4)
    score = lambda outputs: outputs["score"]  # noqa: E731
    first, second_ = surestep.input_gradients(model, (x, index), score)
    assert torch.equal(first, model.table(index))
    assert second_ is None
    named = surestep.input_gradients(model, {"x": x, "index": index, "other": x}, score)
    assert torch.equal(named["x"], first)
    assert (named["index"], named["other"]) == (None, None)


@pytest.mark.parametrize(
    ("model", "inputs", "score", "sentence"),
    [
        (nn.Embedding(5, 3), torch.arange(4), None, "No input is a floating-point tensor"),
        (nn.Linear(4, 2), torch.ones(1, 4), lambda o: o.detach(), "does not depend on the inputs"),
        (nn.Linear(4, 2), torch.ones(1, 4), lambda o: o.argmax(1), "does not depend on the inputs"),
        (Two(), (torch.ones(1, 3), torch.arange(1)), None, "pass score=lambda"),
    ],
)
def test_inputs_without_a_gradient_are_rejected(model, inputs, score, sentence):
    with pytest.raises(TaskError, match=sentence):
        surestep.input_gradients(model, inputs, score)


def steepness(model, inputs, targets):
    return surestep.input_gradients(model, inputs, second).norm(dim=1).mean()


def test_law_4_input_metric_is_correct_and_does_not_change_the_training(tmp_path):
    """An evaluation during the run leaves the training bitwise identical."""
    metrics = {"steepness": surestep.InputMetric(steepness)}

    def trained(name, **parts):
        task = surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), rows(), **parts)
        with session_of(task, tmp_path / name, max_steps=12, batch_size=16) as session:
            for result in session.steps():
                if parts and result.step == 6:
                    session.evaluate()
        return session

    alone = trained("alone")
    watched = trained("watched", val=rows(20), metrics=metrics)
    assert_same(snapshot(alone), snapshot(watched))
    x, y = rows(20)
    task = surestep.Task(watched.model, nn.CrossEntropyLoss(), rows(), val=(x, y), metrics=metrics)
    with session_of(task, tmp_path / "again", max_steps=1) as session:
        found = session.evaluate()["val/steepness"]
        expected = plain(session.model, x).norm(dim=1).mean()
    assert found == pytest.approx(float(expected), rel=1e-6)
