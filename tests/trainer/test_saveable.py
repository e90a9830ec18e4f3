"""What a checkpoint cannot hold is refused before the first step, or right after it."""

import threading

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import surestep
from surestep.base.errors import CheckpointError
from surestep.engine.optim.trial import try_step
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


class Keeping(torch.optim.SGD):
    """Keeps what `made` returns, in its first step."""

    made = staticmethod(object)

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["memory"] = self.made()
        super().step(closure)


class NotCopied(Keeping):
    """Cannot be copied."""

    def __init__(self, groups, lr):
        super().__init__(groups, lr)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (object, r"memory is a object, which has no form"),
        (
            lambda: torch.zeros(1, dtype=torch.complex128),
            r"memory is a tensor of torch\.complex128",
        ),
    ],
)
def test_state_that_an_optimizer_makes_is_refused_before_the_first_step(tmp_path, made, sentence):
    def optimizer(groups):
        keeping = Keeping(groups, lr=0.1)
        keeping.made = made
        return keeping

    with pytest.raises(CheckpointError, match=sentence):
        tiny.prepare(tmp_path, {"optimizer": optimizer})
    assert not (tmp_path / "events.jsonl").exists()


def test_state_without_a_parameter_is_refused_before_the_first_step(tmp_path):
    class OfAll(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            self.state["all"]["count"] = 1

    with pytest.raises(CheckpointError, match="OfAll keeps state under 'all'"):
        tiny.prepare(tmp_path, {"optimizer": lambda groups: OfAll(groups, lr=0.1)})


def test_state_of_an_optimizer_that_cannot_be_tried_is_refused_after_the_first_step(tmp_path):
    parts = {"optimizer": lambda groups: NotCopied(groups, lr=0.1)}
    with (
        pytest.raises(CheckpointError, match="memory is a object, which has no form"),
        tiny.prepare(tmp_path, parts, epochs=5) as session,
    ):
        list(session.steps())
    assert session.state.progress.step == 1


def test_trial_step_changes_neither_the_optimizer_nor_the_run(tmp_path):
    class Counting(torch.optim.SGD):
        """Counts its steps and adds noise."""

        def __init__(self, groups, lr):
            super().__init__(groups, lr)
            self.seen = [0]

        @torch.no_grad()
        def step(self, closure=None):
            super().step(closure)
            self.seen[0] += 1
            for group in self.param_groups:
                group["seen"] = self.seen[0]
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=0.01)

    with tiny.prepare(tmp_path, {"optimizer": lambda groups: Counting(groups, lr=0.1)}) as session:
        before, generator = tiny.weights(session.model), torch.get_rng_state()
        trial = try_step(session.optimizer)
        assert trial is not None
        assert trial.optimizer.seen == [1]
        assert session.optimizer.seen == [0]
        assert "seen" not in session.optimizer.param_groups[0]
        assert not session.optimizer.state
        assert torch.equal(before, tiny.weights(session.model))
        assert torch.equal(generator, torch.get_rng_state())


class Plain(torch.optim.SGD):
    """SGD as a class of its own, which is not one of torch."""


def attach_scheduler(optimizer, _):
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def wrap_step(optimizer, calls):
    step = optimizer.step

    def counting(*args, **kwargs):
        calls.append(optimizer)
        return step(*args, **kwargs)

    optimizer.step = counting


def hold_itself(optimizer, calls):
    """Have the optimizer call a closure of its own, which knows the optimizer itself."""
    optimizer.seen = lambda: calls.append(optimizer)


class Seeing(Plain):
    """Calls `seen` in each step."""

    def step(self, closure=None):
        if "seen" in vars(self):
            self.seen()
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


@pytest.mark.parametrize("change", [attach_scheduler, wrap_step, hold_itself])
def test_trial_step_runs_no_function_that_knows_the_optimizer_itself(tmp_path, change):
    calls = []

    def optimizer(groups):
        made = Seeing(groups, lr=0.1)
        change(made, calls)
        return made

    with tiny.prepare(tmp_path / "run", {"optimizer": optimizer}) as session:
        assert "count" not in session.optimizer.param_groups[0]
        assert not calls
        next(iter(session.steps()))
        assert session.optimizer.param_groups[0]["count"] == 1


def test_hook_on_all_optimizers_does_not_see_the_trial_step(tmp_path):
    seen = []
    handle = register_optimizer_step_post_hook(
        lambda optimizer, args, kwargs: seen.append(optimizer)
    )
    parts = {"optimizer": lambda groups: Plain(groups, lr=0.1)}
    try:
        with tiny.prepare(tmp_path, parts) as session:
            assert not seen
            next(iter(session.steps()))
            assert seen == [session.optimizer]
    finally:
        handle.remove()


def test_state_of_a_callback_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path):
    class Remembering(surestep.Callback):
        def state_dict(self):
            return {"seen": {1, 2}}

        def load_state_dict(self, state):
            pass

    with pytest.raises(CheckpointError, match=r"Remembering declares has a set at .*seen"):
        surestep.prepare(tiny.task(), tiny.config(), run=tmp_path, callbacks=[Remembering()])


def test_state_that_a_callback_makes_in_on_start_is_checked_after_the_first_step(tmp_path):
    class Late(surestep.Callback):
        def on_start(self, state):
            self.seen = {1, 2}

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            pass

    with (
        surestep.prepare(tiny.task(), tiny.config(), run=tmp_path, callbacks=[Late()]) as session,
        pytest.raises(CheckpointError, match="Late declares has a set"),
    ):
        list(session.steps())
    assert session.state.progress.step == 1


def test_option_that_cannot_be_saved_is_refused_before_the_first_step(tmp_path):
    def optimizer(groups):
        made = torch.optim.SGD(groups, lr=0.1)
        made.param_groups[0]["memory"] = object()
        return made

    with pytest.raises(CheckpointError, match=r"SGD keeps a object at 'model/.groups/0/memory'"):
        tiny.prepare(tmp_path, {"optimizer": optimizer})
