"""Losses of 16-bit outputs without autocast: each item in 16 bits as in torch, sums in fp32."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import surestep
from surestep.engine.losses.adapt import as_loss
from tests import tiny
from tests.engine.losses.table import CASES as OWN
from tests.engine.losses.table import N, as_type, rows
from tests.engine.losses.test_adapt import CASES as SIMPLE
from tests.engine.losses.test_torch_losses import CASES as OF_TORCH

HALF = [torch.bfloat16, torch.float16]
ALL = {
    **{f"own {name}": (each.loss, each.outputs, each.targets) for name, each in OWN.items()},
    **{f"torch {name}": each for name, each in (*OF_TORCH.items(), *SIMPLE.items())},
}
SPLIT = {name: case for name, case in ALL.items() if getattr(case[0], "is_separable", True)}
PLAIN = {
    "optim": {"name": "sgd", "lr": 0.125, "weight_decay": 0.0, "momentum": 0.0},
    "schedule": {"name": "constant"},
    "max_grad_norm": "off",
    "data": {"shuffle": False},
}


def total(loss, outputs, targets):
    items = loss.items((outputs, targets) if targets is not None else outputs, targets)
    return loss.total(outputs, targets, items)[0]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("plain", "outputs", "targets"), SPLIT.values(), ids=SPLIT)
def test_sum_over_single_samples_equals_the_sum_over_the_batch(plain, outputs, targets, dtype):
    loss = as_loss(plain, "samples")
    outputs, targets = as_type(outputs, dtype), as_type(targets, dtype)

    def of(start, stop):
        some = rows(outputs, start, stop)
        some = some.transpose(0, 1) if isinstance(plain, nn.CTCLoss) else some
        return total(loss, some, rows(targets, start, stop))

    try:
        whole = of(0, N)
    except RuntimeError as error:  # some have no 16-bit kernel on a CPU, or fp64 class weights
        pytest.skip(str(error))
    assert whole.dtype not in HALF
    parts = sum(of(row, row + 1).double() for row in range(N))
    torch.testing.assert_close(parts, whole.double(), rtol=1e-6, atol=1e-6)


SAME = {
    "cross_entropy": (nn.CrossEntropyLoss(), surestep.losses.multiclass()),
    "mse": (nn.MSELoss(), surestep.losses.mse()),
    "mae": (nn.L1Loss(), surestep.losses.mae()),
    "huber": (nn.HuberLoss(), surestep.losses.huber()),
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", SAME)
def test_gradients_equal_those_of_torchs_mean(name, dtype):
    torch.manual_seed(0)
    start = torch.randn(100, 10).to(dtype)
    targets = (
        torch.randint(10, (100,)) if name == "cross_entropy" else torch.randn(100, 10).to(dtype)
    )

    def gradient(mean):
        leaf = start.clone().requires_grad_()
        mean(leaf).backward()
        return leaf.grad

    plain, own = SAME[name]
    expected = gradient(lambda outputs: plain(outputs, targets))
    for each in (plain, own):
        loss = as_loss(each, "samples")
        items = loss.items(None, targets)
        found = gradient(lambda o, loss=loss, n=items: total(loss, o, targets) / n)
        assert torch.equal(found, expected)


@pytest.mark.parametrize("loss", [nn.MSELoss(), surestep.losses.mse()], ids=["torch", "own"])
def test_mse_in_fp16_does_not_overflow_if_torchs_mean_does_not(loss):
    outputs, targets = torch.full((100,), 30.0).half(), torch.zeros(100).half()
    assert functional.mse_loss(outputs, targets) == 900
    assert torch.isinf(functional.mse_loss(outputs, targets, reduction="sum"))
    assert total(as_loss(loss, "samples"), outputs, targets) == 90_000


def test_teacher_of_16_bits_is_distilled_in_fp32():
    loss, (labels, teacher) = surestep.losses.distillation(), OWN["distillation"].targets
    outputs, half = OWN["distillation"].outputs.float(), teacher.bfloat16()
    for name, term in loss.total(outputs, (labels, half)).items():
        assert torch.equal(term, loss.total(outputs, (labels, half.float()))[name])


def half_task(loss, dtype):
    x, y = tiny.data(24)
    targets = y if isinstance(loss, nn.CrossEntropyLoss | type(surestep.losses.multiclass())) else x
    torch.manual_seed(0)
    net = nn.Linear(4, 3 if targets is y else 4)
    data = (x.to(dtype), targets if targets is y else targets.to(dtype))
    return {"model": net.to(dtype), "loss": loss, "train": data, "val": data}


LOSSES = {
    "torch's": nn.CrossEntropyLoss,
    "own": surestep.losses.multiclass,
    "torch's mse": nn.MSELoss,
    "own mse": surestep.losses.mse,
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_reported_loss_is_the_same_for_any_micro_batch_size(tmp_path, make, dtype):
    reported = []
    for size, measured in ((24, 24), (7, 5), (1, 1)):
        parts = half_task(make(), dtype)
        options = {"batch_size": 24, "micro_batch_size": size, **PLAIN}
        options |= {"validation": {"batch_size": measured}}
        with tiny.prepare(tmp_path / str(size), parts, **options) as session:
            before = session.evaluate()["val/loss"]
            loss = float(next(session.steps()).loss)
        reported.append((before, loss))
    model, (x, y) = half_task(make(), dtype)["model"], half_task(make(), dtype)["val"]
    each = as_loss(make(), "samples").total(model(x).detach(), y, 1)[0].double()
    expected = float(each) / (y.numel())
    for before, loss in reported:
        assert before == pytest.approx(expected, rel=1e-6)
        assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_training_step_equals_that_of_plain_torch(tmp_path, dtype):
    parts = half_task(nn.CrossEntropyLoss(), dtype)
    plain = half_task(nn.CrossEntropyLoss(), dtype)
    optimizer = torch.optim.SGD(plain["model"].parameters(), lr=0.125)
    x, y = plain["train"]
    functional.cross_entropy(plain["model"](x), y).backward()
    optimizer.step()
    with tiny.prepare(tmp_path, parts, batch_size=24, **PLAIN) as session:
        next(session.steps())
    assert torch.equal(tiny.weights(parts["model"]), tiny.weights(plain["model"]))


def test_losses_of_16_bit_outputs_of_a_model_are_summed_in_fp32(tmp_path):
    class Inside(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    x, y = tiny.data(24)
    losses = []
    for size in (24, 1):
        torch.manual_seed(0)
        parts = {"model": Inside(4, 3), "train": (x, y)}
        options = {"batch_size": 24, "micro_batch_size": size, **PLAIN}
        with tiny.prepare(tmp_path / str(size), parts, **options) as session:
            losses.append(float(next(session.steps()).loss))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_logged_16_bit_value_is_averaged_in_fp32(tmp_path):
    def loss(outputs, targets):
        surestep.log("mean", outputs.mean())
        return functional.cross_entropy(outputs, targets)

    parts = half_task(nn.CrossEntropyLoss(), torch.bfloat16) | {"loss": loss}
    with tiny.prepare(tmp_path, parts, batch_size=24, micro_batch_size=1, **PLAIN) as session:
        logged = next(session.steps()).logged
    outputs = half_task(nn.CrossEntropyLoss(), torch.bfloat16)["model"](parts["train"][0])
    expected = outputs.detach().mean(1).double().mean()
    mean = sum(float(part.value) for part in logged) / sum(part.items for part in logged)
    assert mean == pytest.approx(float(expected), rel=1e-5)
