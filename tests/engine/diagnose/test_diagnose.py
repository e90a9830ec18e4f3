"""The cause of a non-finite step is named by operation, module and samples."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import surestep
from surestep.engine.diagnose.diagnose import describe_diagnosis
from tests import tiny
from tests.engine.diagnose.broken import (
    BAD,
    SAMPLES,
    data,
    diagnosed,
    half_logarithm,
    learned,
    model,
    place_of,
)

# The first batch is checked before a run, so it must not contain the bad sample: seed 3.
OPTIONS: dict[str, Any] = {"batch_size": 8, "seed": 3}


def opened(tmp_path, net, train, **said):
    loss = said.pop("loss", None) or nn.CrossEntropyLoss()
    parts = {"model": net, "train": train, "loss": loss}
    return tiny.prepare(tmp_path / "run", parts, **{**OPTIONS, **said})


def samples(found):
    return [each.index for each in found.samples.samples]


CASES: dict[str, tuple[Any, Any, dict[str, Any], str, str | None, str]] = {
    "NaN in one sample": (model, data(math.nan), {}, "batch", None, "input 0"),
    "log(0)": (lambda: model(torch.log), data(0.0), {}, "forward", "0", "aten.log"),
    "division by zero": (
        lambda: model(lambda x: x / x.sum(1, keepdim=True)),
        *(data(0.0), {}, "forward", "0", "aten.div"),
    ),
    "NaN only in the backward": (
        lambda: learned(half_logarithm),
        *(data(0.0), {}, "backward", "0", "aten.div"),
    ),
    "fp16 overflow in one layer": (
        lambda: model(lambda x: 1000 * x),
        *(data(1e3), {"precision": "fp16"}, "forward", "1", "aten._to_copy"),
    ),
    "in the loss": (
        model,
        data(0.0),
        {"loss": lambda logits, y: nn.functional.cross_entropy(logits, y) + _of_inputs(logits)},
        *("forward", None, "aten.log"),
    ),
}


def _of_inputs(logits):
    return torch.log((logits - logits.detach()).abs().sum(1)).mean()


@pytest.mark.parametrize("micro_batch_size", [None, 3])
@pytest.mark.parametrize("name", [name for name in CASES if name != "in the loss"])
def test_operation_module_and_sample_of_a_nonfinite_step_are_named(
    tmp_path, name, micro_batch_size
):
    make, train, said, phase, module, operation = CASES[name]
    with opened(tmp_path, make(), train, micro_batch_size=micro_batch_size, **said) as session:
        found = diagnosed(session)
    assert found.reproduced
    assert found.cause is not None
    assert found.cause.phase == phase
    assert found.cause.module == module
    assert operation in (found.cause.operation, found.cause.name)
    assert samples(found) == [BAD]
    text = describe_diagnosis(found)
    assert operation in text
    assert f"Sample {BAD} " in text
    assert module is None or f"in '{module}'" in text


def test_nonfinite_operation_of_the_loss_has_no_module(tmp_path):
    make, train, said, phase, module, operation = CASES["in the loss"]
    with opened(tmp_path, make(), train, **said) as session:
        found = diagnosed(session)
    assert found.cause is not None
    assert (found.cause.phase, found.cause.module) == (phase, module)
    assert found.cause.operation == operation
    assert samples(found) == []
    assert found.samples.known


def test_exploded_weight_is_not_blamed_on_a_sample(tmp_path):
    with opened(tmp_path, model(), data(0.5)) as session:
        with torch.no_grad():
            session.model[3].weight.fill_(3e38)
        found = diagnosed(session)
    assert found.cause is not None
    assert found.cause.module == "3"
    assert samples(found) == []
    assert found.samples.known
    assert "No single sample" in describe_diagnosis(found)
    assert "3.weight 3e+38" in describe_diagnosis(found)


def test_weight_that_was_nonfinite_before_the_step_is_named(tmp_path):
    with opened(tmp_path, model(), data(0.5)) as session:
        with torch.no_grad():
            session.model[3].weight[0, 0] = math.inf
        found = diagnosed(session)
    assert found.cause is not None
    assert (found.cause.phase, found.cause.name) == ("weights", "3.weight")
    assert "3.weight was not finite before the step" in describe_diagnosis(found)


def test_faulty_samples_under_batch_norm_are_found_by_excluding_them(tmp_path):
    with opened(tmp_path, model(torch.log, nn.BatchNorm1d(6)), data(0.0)) as session:
        found = diagnosed(session)
    assert samples(found) == [BAD]
    assert "without" in found.samples.how


def test_masking_with_infinity_is_not_reported_as_the_cause(tmp_path):
    """The infinite values are intended, and the NaN comes from a different operation."""

    def masked(value):
        scores = value.masked_fill(value < 0, -math.inf)
        return scores.softmax(1) + torch.log(value)

    with opened(tmp_path, model(masked), data(0.0)) as session:
        found = diagnosed(session)
    assert found.cause is not None
    assert found.cause.operation == "aten.log"


def test_softmax_of_a_fully_masked_row_is_reported_as_the_cause(tmp_path):
    def masked(value):
        return value.masked_fill(value == 0, -math.inf).softmax(1)

    with opened(tmp_path, model(masked), data(0.0)) as session:
        found = diagnosed(session)
    assert found.cause is not None
    assert found.cause.operation == "aten._softmax"
    assert samples(found) == [BAD]


def test_step_that_is_finite_when_repeated_is_reported_as_finite(tmp_path):
    with opened(tmp_path, model(), data(0.5)) as session:
        found = diagnosed(session)
    assert not found.reproduced
    assert found.cause is None
    assert "Repeated from the same state, the step is finite" in describe_diagnosis(found)


def test_line_of_user_code_is_named(tmp_path):
    with opened(tmp_path, model(lambda x: torch.log(x)), data(0.0)) as session:
        found = diagnosed(session)
    assert found.cause is not None
    assert found.cause.line is not None
    assert found.cause.line.startswith("test_diagnose.py:")


@pytest.mark.parametrize("bad", [1.0, math.nan], ids=["finite", "NaN"])
def test_diagnosis_of_a_manual_step_does_not_change_the_loss_scale(tmp_path, bad):
    def step(manual_step):
        for micro in manual_step.micro_batches("net"):
            x, y = micro.args
            loss = nn.functional.cross_entropy(manual_step.models["net"](x), y)
            manual_step.backward(loss, micro)
        manual_step.step("net")

    net = nn.Sequential()
    net.add_module("net", nn.Linear(4, 3))
    parts = {"model": net, "train": data(bad), "loss": None, "step": step}
    task = tiny.task(**parts, optimizers={"net": surestep.OptimizerSpec()})
    scaler = {"init_scale": 2.0**14, "growth_interval": 1}
    options = tiny.config(**OPTIONS, precision="fp16", scaler=scaler)
    with surestep.prepare(task, options, run=tmp_path / "run") as session:
        before = session.state.scaler.state_dict(), tiny.weights(session.model)
        found = diagnosed(session)
        assert session.state.scaler.state_dict() == before[0]
        assert torch.equal(tiny.weights(session.model), before[1])
    assert found.reproduced is (bad != 1.0)


def test_diagnosis_computes_a_bitwise_identical_loss(tmp_path):
    with opened(tmp_path, model(), data(0.5)) as session:
        found = diagnosed(session)
        batch, place = place_of(session, BAD)
        session.state.progress = place
        result = surestep.engine.step.train_step.train_step(session.loop.context, batch)
        assert found.loss == float(result.loss)


STORED: dict[str, Any] = {"data": {"shuffle": False}, "batch_size": SAMPLES}


def positions(found):
    return [each.position for each in found.samples.samples]


@pytest.mark.parametrize("micro_batch_size", [None, 3, 4])
@pytest.mark.parametrize("bad", [(BAD,), (2, 7, BAD)])
def test_diagnosis_with_batch_norm_names_only_the_faulty_samples(tmp_path, micro_batch_size, bad):
    net, said = model(None, nn.BatchNorm1d(6)), {**STORED, "micro_batch_size": micro_batch_size}
    with opened(tmp_path, net, data(0.5), **said) as session:
        session.loop.loader.source.tensors[0][list(bad)] = math.nan
        found = diagnosed(session)
    assert positions(found) == list(bad)
    assert "so none was tested alone" in found.samples.how


class Spreads(nn.Module):
    """Its gradient is NaN for inputs of -7; BatchNorm spreads it to the full micro-batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.norm(self.first(x.clamp(min=-1)))
        return self.last(half_logarithm(hidden.abs() * (x[:, :1] != -7)).clamp(-2, 2))


@pytest.mark.parametrize("micro_batch_size", [None, 3, 4])
def test_nan_gradient_spread_by_batch_norm_is_traced_to_its_sample(tmp_path, micro_batch_size):
    said = {**STORED, "micro_batch_size": micro_batch_size}
    with opened(tmp_path, Spreads(), data(0.5), **said) as session:
        session.loop.loader.source.tensors[0][BAD] = -7.0
        found = diagnosed(session)
    assert found.cause is not None
    assert found.cause.phase == "backward"
    assert positions(found) == [BAD]


class Summed(nn.Module):
    """Sums over samples: the sum overflows although no single sample does."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x.clamp(-1, 1)) + 0 * x[:, :1].sum()


def test_samples_that_overflow_only_in_their_sum_are_not_named(tmp_path):
    with opened(tmp_path, Summed(), data(0.5), **STORED) as session:
        session.loop.loader.source.tensors[0][5:9] = 1e38
        found = diagnosed(session)
    assert found.reproduced
    assert positions(found) == []
    assert "each sample is finite alone, but several together are not" in describe_diagnosis(found)


def test_no_sample_is_named_if_every_micro_batch_is_nonfinite(tmp_path):
    net, said = model(None, nn.BatchNorm1d(6)), {**STORED, "micro_batch_size": 2}
    with opened(tmp_path, net, data(0.5), **said) as session:
        session.loop.loader.source.tensors[0][BAD] = math.nan
        found = diagnosed(session)
    assert positions(found) == []
    assert "none can be tested alone" in describe_diagnosis(found)
