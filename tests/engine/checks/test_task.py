"""The model and the loss as they are given, before there is a batch."""

import warnings

import pytest
import torch
from torch import nn

from surestep.base.errors import TaskError
from surestep.engine.checks.task import check_loss, check_model
from tests import tiny

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    SCRIPTED = torch.jit.script(tiny.model())
    TRACED = torch.jit.trace(nn.Linear(4, 3), torch.zeros(1, 4))
    LOSS = torch.jit.script(nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"model": SCRIPTED}, "model is"),
        ({"model": lambda: SCRIPTED}, "model is"),
        ({"model": TRACED}, "model is"),
        ({"model": nn.Sequential(nn.Linear(4, 4), TRACED)}, "model.1 is"),
        ({"loss": LOSS}, "loss is"),
        ({"loss": {"a": nn.CrossEntropyLoss(), "b": LOSS}}, "loss is"),
    ],
    ids=["script", "function", "trace", "submodule", "loss", "several losses"],
)
def test_torchscript_module_is_named_with_what_to_do(tmp_path, parts, named):
    with pytest.raises(TaskError) as caught:
        tiny.fit(tmp_path, parts)
    assert str(caught.value).startswith(f"{named} a TorchScript module")
    is_loss = "loss" in parts
    assert ("torch.jit.script(model)" in str(caught.value)) != is_loss
    assert ("scripted(outputs, targets)" in str(caught.value)) == is_loss


def test_function_around_a_torchscript_loss_trains_as_the_python_loss(tmp_path):
    def around(outputs, targets):
        return LOSS(outputs, targets)

    losses = []
    for name, loss in (("python", nn.CrossEntropyLoss()), ("scripted", around)):
        run = tiny.fit(tmp_path / name, {"loss": loss, "val": tiny.data()}, max_steps=2)
        losses.append(run.best.metrics["val/loss"])
    assert losses[0] == pytest.approx(losses[1])


def test_function_of_torchscript_is_a_loss(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = torch.jit.script(nn.functional.cross_entropy)
    tiny.fit(tmp_path, {"loss": loss}, max_steps=1)


def test_python_modules_are_accepted():
    check_model(tiny.model())
    check_loss(nn.CrossEntropyLoss())
