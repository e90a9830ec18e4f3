"""When an average takes the weights in, and how much of them."""

import pytest
import torch

from surestep.engine.plan.specs import AveragingSpec
from surestep.engine.state.average import AveragedWeights
from surestep.engine.step_outcome import StepOutcome
from tests import tiny

KINDS = {"ema": {"decay": 0.9, "warmup": True}, "swa": {"decay": None, "warmup": None}}
TAKEN = StepOutcome(True)


def average_of(net, kind="ema", **more):
    options = {"start": 0, "interval": 1, "buffers": "copy", "lr": None, "anneal": 0, **more}
    return AveragedWeights(AveragingSpec(kind, **KINDS[kind], **options), net, net.parameters())


def move_weights(net, seed):
    """Set other weights; return them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return tiny.weights(net)


def averaged(average):
    return torch.cat([tensor.double().flatten() for tensor in average.tensors.values()])


@pytest.mark.parametrize(("kind", "share"), [("ema", 1 - 2 / 11), ("swa", 1 / 2)])
def test_average_that_is_switched_on_in_mid_run_begins_with_the_weights_there(kind, share):
    net = tiny.model()
    average = average_of(net, kind)
    first = move_weights(net, 1)
    average.begin(4)
    assert average.n_updates(4) == 1
    assert torch.equal(averaged(average), first)
    second = move_weights(net, 2)
    average.update(5, TAKEN)
    torch.testing.assert_close(averaged(average), first.lerp(second, share), rtol=0, atol=1e-6)
    assert average.n_updates(5) == average.computed_at + 1 == 2
    average.begin(9)
    assert average.n_updates(9) == average.computed_at == 1


def test_update_takes_in_the_one_before_that_no_forward_has_followed():
    net = tiny.model()
    average = average_of(net, "swa")
    first = move_weights(net, 1)
    average.update(1, TAKEN)
    average.update(2, TAKEN)
    with average.swapped_in():
        assert torch.equal(tiny.weights(net), first)


@pytest.mark.parametrize("restart", ["load", "load_state_dict", "begin"])
def test_update_that_is_due_is_dropped_with_the_state_that_it_was_of(restart):
    net = tiny.model()
    average = average_of(net, "swa")
    average.update(1, TAKEN)
    saved = {name: tensor.clone() for name, tensor in average.tensors.items()}
    state, before = average.state_dict(), tiny.weights(net)
    average.update(2, TAKEN)
    if restart == "begin":
        average.begin(2)
    else:
        getattr(average, restart)(*((saved, 1) if restart == "load" else (state,)))
    move_weights(net, 2)
    assert torch.equal(averaged(average), before)
    assert average.computed_at == average.n_updates(1 if restart == "load" else 2) * (
        restart != "load_state_dict"
    )


def test_half_buffer_is_averaged_in_fp32_and_a_mask_is_that_of_the_model():
    net = tiny.model()
    net.register_buffer("seen", torch.zeros(2, dtype=torch.float16))
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    average = average_of(net, "swa", buffers="average")
    for step in (1, 2, 3):
        net.seen.fill_(step % 2)
        net.mask[0] = step
        average.update(step, TAKEN)
        average.take_in()
    assert average.tensors["seen"].tolist() == pytest.approx([2 / 3] * 2, rel=1e-6)
    with average.swapped_in():
        assert net.mask.tolist() == [3, -torch.inf]


@pytest.mark.parametrize("by_epochs", [True, False])
def test_interval_of_epochs_that_ends_in_a_skipped_step_is_averaged(by_epochs):
    """Other intervals count only steps that were taken."""
    net = tiny.model()
    average = average_of(net, "swa", interval=2, by_epochs=by_epochs)
    first, second = tiny.weights(net), move_weights(net, 1)
    average.update(1, TAKEN)
    average.update(2, StepOutcome(False))
    assert average.n_updates(2) == by_epochs
    assert torch.equal(averaged(average), second if by_epochs else first)
    average.undo_skip(2)
    assert average.n_updates(2) == 1


@pytest.mark.parametrize("kind", ["plain", "expanded"])
def test_buffer_that_an_evaluation_replaces_is_restored(kind):
    net = tiny.model()
    net.register_buffer("scale", torch.ones(1).expand(3) if kind == "expanded" else torch.ones(3))
    average = average_of(net, buffers="average")
    net.scale = torch.full((1,), 2.0).expand(3) if kind == "expanded" else torch.full((3,), 2.0)
    before = tiny.weights(net)
    with average.swapped_in():
        assert net.scale.tolist() == [1, 1, 1]
        net.scale = net.scale + 5
    assert torch.equal(tiny.weights(net), before)


class Scaled(torch.nn.Module):
    """A model with an 8-bit buffer and one that is averaged, both of which each forward changes."""

    def __init__(self):
        super().__init__()
        self.inner = tiny.model()
        self.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.scale = (self.scale.float() * 2).to(self.scale.dtype)
        return self.inner(x)


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_8_bit_buffers_of_an_average_are_those_of_the_model(tmp_path, kind):
    average = {"kind": kind, "start": "0%", "every": "1 step", "buffers": "average"}
    run = tiny.fit(tmp_path, {"model": Scaled()}, max_steps=3, average=average)
    net = Scaled()
    run.load_model(net, which="average")
    assert net.scale.dtype == torch.float8_e4m3fn
    assert net.scale.float().tolist() == [8, 8, 8]
    expected = {"ema": 1 * (2 / 11) + 2 * (9 / 11), "swa": 2.0}  # of 1, 2, 3
    if kind == "ema":
        expected["ema"] = expected["ema"] * 3 / 12 + 3 * 9 / 12
    assert float(net.seen) == pytest.approx(expected[kind])


def test_buffer_that_got_another_shape_is_that_of_the_model_also_after_a_load():
    net = tiny.model()
    net.register_buffer("grows", torch.zeros(2))
    net.register_buffer("stays", torch.zeros(2))
    average = average_of(net, buffers="average")
    assert average.state_dict() == {"missed": 0, "left_buffers": []}
    net.grows = torch.ones(5)
    average.update(1, TAKEN)
    assert "grows" not in average.tensors
    assert average.state_dict() == {"missed": 0, "left_buffers": ["grows"]}
    net.grows = torch.ones(2)
    other = average_of(net, buffers="average")
    other.load_state_dict(average.state_dict())
    assert other.tensors.keys() == average.tensors.keys()
    other.load_state_dict({"missed": 1})  # of an older version
    assert {"grows", "stays"} < other.tensors.keys()


def test_buffer_of_another_shape_is_loaded_as_a_copy():
    """The file may be mapped."""
    net = tiny.model()
    net.register_buffer("seen", torch.zeros(2))
    average = average_of(net, buffers="average")
    saved = {name: tensor.clone() for name, tensor in average.tensors.items()}
    saved["seen"] = torch.ones(5)
    average.load(saved, 1)
    saved["seen"] += 1
    assert average.stored["seen"].tolist() == [1.0] * 5
