"""What a checkpoint cannot hold is refused before the first step, or at the first log point."""

import pytest
import torch
from torch import nn

from surestep.base.errors import CheckpointError
from tests import tiny


class Complex(nn.Module):
    """Has weights of a complex type."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=dtype))

    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight).abs().float()


@pytest.mark.parametrize("where", ["parameter", "buffer"])
def test_type_that_no_checkpoint_holds_is_refused_before_the_first_step(tmp_path, where):
    model = Complex(torch.complex128) if where == "parameter" else tiny.model()
    if where == "buffer":
        model.register_buffer("table", torch.zeros(2, dtype=torch.complex128))
    name = "weight" if where == "parameter" else "table"
    sentence = rf"{name} is a tensor of torch\.complex128, which a checkpoint cannot hold"
    with pytest.raises(CheckpointError, match=sentence):
        tiny.prepare(tmp_path, {"model": model})
    assert not (tmp_path / "events.jsonl").exists()


def test_quantized_buffer_is_refused_before_the_first_step(tmp_path):
    model = tiny.model()
    model.register_buffer("table", torch.zeros(2).to(torch.float8_e4m3fnuz))
    with pytest.raises(CheckpointError, match=r"float8_e4m3fnuz, which a checkpoint cannot hold"):
        tiny.prepare(tmp_path, {"model": model})


def test_complex64_is_trained_and_saved(tmp_path):
    def made():
        torch.manual_seed(0)
        return Complex(torch.complex64)

    whole = tiny.prepare(tmp_path / "whole", {"model": made()})
    with whole:
        list(whole.steps())
    with tiny.prepare(tmp_path / "run", {"model": made()}) as session:
        next(iter(session.steps()))
        session.save()
    with tiny.prepare(tmp_path / "run", {"model": made()}) as session:
        list(session.steps())
    assert torch.equal(whole.model.weight, session.model.weight)


def test_state_of_an_optimizer_that_cannot_be_saved_is_refused_at_the_first_log_point(tmp_path):
    class Keeping(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state["all"]["count"] = 1

    parts = {"optimizer": lambda groups: Keeping(groups, lr=0.1)}
    said = {"logging": {"every": "1 step"}, "epochs": 5}
    with (
        pytest.raises(CheckpointError, match="Keeping keeps state under 'all'"),
        tiny.prepare(tmp_path, parts, **said) as session,
    ):
        list(session.steps())
    assert session.state.place.step == 1


def test_option_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path):
    def optimizer(groups):
        made = torch.optim.SGD(groups, lr=0.1)
        made.param_groups[0]["memory"] = object()
        return made

    with pytest.raises(CheckpointError, match=r"SGD keeps a object at 'model/.groups/0/memory'"):
        tiny.prepare(tmp_path, {"optimizer": optimizer})
