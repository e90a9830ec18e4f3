"""State that a checkpoint cannot store is rejected before the first step or right after."""

import pytest
import torch
from torch import nn

import surestep
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
def test_unsaveable_dtype_is_rejected_before_the_first_step(tmp_path, where):
    model = Complex(torch.complex128) if where == "parameter" else tiny.model()
    if where == "buffer":
        model.register_buffer("table", torch.zeros(2, dtype=torch.complex128))
    name = "weight" if where == "parameter" else "table"
    sentence = rf"{name} is a tensor of torch\.complex128, which a checkpoint cannot hold"
    with pytest.raises(CheckpointError, match=sentence):
        tiny.prepare(tmp_path, {"model": model})
    assert not (tmp_path / "events.jsonl").exists()


def test_quantized_buffer_is_rejected_before_the_first_step(tmp_path):
    model = tiny.model()
    model.register_buffer("table", torch.zeros(2).to(torch.float8_e4m3fnuz))
    with pytest.raises(
        CheckpointError,
        match=r"float8_e4m3fnuz, which a checkpoint cannot hold.*view\(torch.uint8\)",
    ):
        tiny.prepare(tmp_path, {"model": model})


def test_complex64_model_is_trained_and_saved(tmp_path):
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


class Keeping(torch.optim.SGD):
    """Stores the result of `made` in its state, in its first step."""

    made = staticmethod(object)

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["memory"] = self.made()
        super().step(closure)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (object, r"memory' is a object, which has no form"),
        (
            lambda: torch.zeros(1, dtype=torch.complex128),
            r"memory is a tensor of torch\.complex128",
        ),
    ],
)
def test_unsaveable_optimizer_state_is_rejected_after_the_first_step(tmp_path, made, sentence):
    def optimizer(groups):
        keeping = Keeping(groups, lr=0.1)
        keeping.made = made
        return keeping

    with (
        pytest.raises(CheckpointError, match=sentence),
        tiny.prepare(tmp_path, {"optimizer": optimizer}, epochs=5) as session,
    ):
        list(session.steps())
    assert session.state.progress.step == 1


def test_optimizer_state_without_a_parameter_is_rejected_after_step_one(tmp_path):
    class OfAll(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state["all"]["count"] = 1

    with (
        pytest.raises(CheckpointError, match="OfAll keeps state under 'all'"),
        tiny.prepare(tmp_path, {"optimizer": lambda groups: OfAll(groups, lr=0.1)}) as session,
    ):
        list(session.steps())


def test_unsaveable_state_of_a_callback_is_rejected_before_the_first_step(tmp_path):
    class WithSet(surestep.Callback):
        def state_dict(self):
            return {"seen": {1, 2}}

        def load_state_dict(self, state):
            pass

    with pytest.raises(CheckpointError, match=r"'WithSet/seen' is a set"):
        surestep.prepare(tiny.task(), tiny.config(), run=tmp_path, callbacks=[WithSet()])


def test_callback_state_made_in_on_start_is_checked_after_the_first_step(tmp_path):
    class Late(surestep.Callback):
        def on_start(self, state):
            self.seen = {1, 2}

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            pass

    with (
        surestep.prepare(tiny.task(), tiny.config(), run=tmp_path, callbacks=[Late()]) as session,
        pytest.raises(CheckpointError, match="'Late/seen' is a set, which has no form"),
    ):
        list(session.steps())
    assert session.state.progress.step == 1


def test_unsaveable_optimizer_option_is_rejected_before_the_first_step(tmp_path):
    def optimizer(groups):
        made = torch.optim.SGD(groups, lr=0.1)
        made.param_groups[0]["memory"] = object()
        return made

    with pytest.raises(CheckpointError, match=r"'model/.groups/0/memory' is a object"):
        tiny.prepare(tmp_path, {"optimizer": optimizer})
