"""Buffers whose shape or dtype training changes, as those of quantization observers.

A run with them equals a plain PyTorch script (law 3), is resumed bitwise (law 2), is not changed by
evaluations (law 4) nor by skipped steps (law 5), and its checkpoints can be loaded.
"""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.base.errors import CheckpointError, NonFiniteError
from tests.laws.support import plain
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.ao.quantization is deprecated",
    "ignore:Please use quant_min and quant_max",
    "ignore:torch.quantize_per_tensor",
    "ignore:must run observer before calling calculate_qparams",
)
Folder = Callable[[], Path]
STEPS, BATCH = 8, 9
OPTIONS: dict[str, Any] = {"max_steps": STEPS, "batch_size": BATCH, "optim": {"lr": 0.01}}
EMA: dict[str, Any] = {"average": {"kind": "ema", "decay": 0.5, "warmup": False}}


class Changing(nn.Module):
    """A model with a buffer that each training step changes differently."""

    def __init__(self, kind: str, *, persistent: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind = kind
        self.first, self.last = nn.Linear(10, 8), nn.Linear(8, 3)
        first = torch.zeros(0 if kind in ("grows", "resized") else 1, 8)
        dtype = torch.int64 if kind == "gets a fraction" else torch.float32
        self.register_buffer("table", first.to(dtype), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.training:
            self.change(hidden.detach())
        shift = self.table.mean(0) if self.table.is_floating_point() and len(self.table) else 0
        return self.last((hidden - shift).float().relu())

    def change(self, hidden: Tensor) -> None:
        mean = hidden.mean(0, keepdim=True)
        if self.kind == "grows":
            self.table = torch.cat([self.table, mean])
        elif self.kind == "resized":  # in place
            count = len(self.table)
            self.table.resize_(count + 1, 8)
            self.table[count:] = mean
        elif self.kind == "last batch":  # one sample per row
            self.table = hidden.clone()
        elif self.kind == "gets wider":
            self.table = 0.9 * self.table.double() + 0.1 * mean.double()
        else:
            self.table = 0.9 * self.table.float() + 0.1 * mean


class Writer(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            count = len(self.table)
            self.table.resize_(count + 1, 8)
            self.table[count] = x.detach().mean(0)
        return x


class Replacer(Writer):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.table = self.table + x.detach().mean(0)
        return x


class Reader(Writer):
    def forward(self, x: Tensor) -> Tensor:
        return x - (self.table.mean(0) if len(self.table) else 0)


def shared(*kinds: type[nn.Module], rows: int = 0) -> nn.Module:
    """Return a model of modules that are built with one buffer."""
    torch.manual_seed(1)
    table = torch.zeros(rows, 8)
    return nn.Sequential(nn.Linear(10, 8), *(kind(table) for kind in kinds), nn.Linear(8, 3))


class NotingNorm(nn.BatchNorm1d):
    """A layer of torch with one more buffer, which grows."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("means", torch.zeros(0, features))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.means = torch.cat([self.means, x.detach().mean(0, keepdim=True)])
        return super().forward(x)


def noting() -> nn.Module:
    """Return a model with a subclass of a layer, and a layer with a hook, that fill buffers."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 8), NotingNorm(8), nn.Linear(8, 3))
    model[0].register_buffer("seen", torch.zeros(0, 10))

    def note(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        if layer.training:
            layer.seen = torch.cat([layer.seen, inputs[0].detach().mean(0, keepdim=True)])

    model[0].register_forward_pre_hook(note)
    return model


class Quantized(nn.Module):
    """A model of layers that can be quantized."""

    def __init__(self, kind: str) -> None:
        from torch.ao import quantization as ao

        super().__init__()
        torch.manual_seed(1)
        self.enter, self.leave = ao.QuantStub(), ao.DeQuantStub()
        convolution = [nn.Unflatten(1, (1, 10)), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.ReLU()]
        layers = {
            "linear": [nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)],
            "convolution": [*convolution, nn.Flatten(), nn.Linear(16, 3)],
        }
        self.layers = nn.Sequential(*layers[kind.partition(",")[0]])

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.layers(self.enter(x)))


def quantized(kind: str) -> nn.Module:
    """Return a model with observers and rounding; what it observes is per channel, or fused."""
    from torch.ao import quantization as ao

    torch.backends.quantized.engine = "fbgemm"
    model = Quantized(kind).train()
    if kind.startswith("convolution"):
        ao.fuse_modules_qat(model.layers, [["1", "2"]], inplace=True)
    model.qconfig = ao.get_default_qat_qconfig("fbgemm", version=1 if kind.endswith("fused") else 0)
    return ao.prepare_qat(model)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"{kind}, {'' if persistent else 'not '}persistent": partial(
            Changing, kind, persistent=persistent
        )
        for kind in ("grows", "resized", "last batch", "gets wider", "gets a fraction")
        for persistent in (True, False)
    },
    **{
        f"quantized, {kind}": partial(quantized, kind)
        for kind in ("linear", "linear, fused", "convolution")
    },
    "shared, resized": partial(shared, Writer, Reader),
    "shared, one replaced": partial(shared, Replacer, Reader, rows=2),
    "noting": noting,
}

# A run with an average also saves and loads what one without has; these are compared without, too.
WITHOUT_AVERAGE = ("grows, persistent", "gets wider, not persistent", "quantized, convolution")


def task_of(kind: str, train: tuple[Tensor, Tensor] | None = None) -> surestep.Task:
    return surestep.Task(MODELS[kind](), nn.CrossEntropyLoss(), train or rows(44), val=rows(20))


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    return {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}


def state_of(session: Any) -> dict[str, Any]:
    return snapshot(session) | buffers_of(session.model)


def plain_run(kind: str, schedule: plain.Schedule = plain.constant) -> nn.Module:
    """Train a model by a plain script."""
    model = MODELS[kind]()
    plain.exact_loop(
        model,
        partial(functional.cross_entropy, reduction="sum"),
        *rows(44),
        steps=STEPS,
        batch_size=BATCH,
        micro_batch_size=BATCH,
        make_optimizer=plain.adamw(lr=0.01, fused=True),
        schedule=schedule,
    )
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_run_that_evaluates_equals_the_plain_script(folder, kind):
    expected = plain_run(kind)
    with session_of(task_of(kind), folder(), **OPTIONS) as session:
        for _ in session.steps():
            session.evaluate()
    assert_same(expected.state_dict(), session.model.state_dict())
    assert_same(buffers_of(expected), buffers_of(session.model))


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, EMA) for kind in MODELS), *((kind, {}) for kind in WITHOUT_AVERAGE)],
    ids=[*(f"{kind}, ema" for kind in MODELS), *WITHOUT_AVERAGE],
)
def test_killed_run_is_resumed_bitwise_and_loaded(folder, kind, options):
    check_killed(folder, kind, **options)


def check_killed(folder: Folder, kind: str, **options: Any) -> None:
    """Compare a run that is killed and resumed with one that is not; load its checkpoint."""
    # Observers change in evaluations too, with each batch.
    options = {**OPTIONS, **options, "validation": {"batch_size": 20}}
    with session_of(task_of(kind), folder(), **options) as whole:
        list(whole.steps())
    path, names = folder(), ["last", *(["average"] if "average" in options else [])]
    if (pid := os.fork()) == 0:
        with session_of(task_of(kind), path, **options) as session:
            for result in session.steps():
                session.evaluate()
                if result.step == 4:
                    session.save()
                if result.step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with session_of(task_of(kind), path, **options) as session:
        assert session.state.progress.step == 4
        list(session.steps())
        session.save()
        measured = [session.evaluate_checkpoint("val", which)["val/loss"] for which in names]
        resumed = state_of(session)
        session.evaluate_checkpoint("val", 4)
        assert_same(resumed, state_of(session))
    assert_same(state_of(whole), resumed)
    model, (x, y) = MODELS[kind](), rows(20)
    run = surestep.Run(path)
    for which, expected in [*zip(names, measured, strict=True)] * 2:
        run.load_model(model, 4)  # the second time, into buffers of another shape
        run.load_model(model, which)
        with torch.no_grad():
            loss = float(functional.cross_entropy(model.eval()(x), y))
        assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])  # decided on the device, on the host
@pytest.mark.parametrize("kind", MODELS)
def test_skipped_step_restores_buffers(folder, kind, on_nonfinite):
    x, y = rows(18)
    x[9:] = torch.nan
    options = {**OPTIONS, "data": {"shuffle": False}, "on_nonfinite": on_nonfinite}
    with session_of(task_of(kind, (x, y)), folder(), **options, **EMA) as session:
        steps = session.steps()
        next(steps)
        before = state_of(session)
        with pytest.raises(NonFiniteError) if on_nonfinite == "raise" else nullcontext():
            list(steps) if on_nonfinite == "raise" else next(steps)
        after = state_of(session)
    assert_same(before, after)


def test_average_with_statistics_of_its_own_holds_no_other_buffer_of_a_norm(folder):
    average = {"average": {"kind": "swa", "start": 2}}
    check_killed(folder, "noting", **average)


def histograms() -> nn.Module:
    from torch.ao import quantization as ao

    torch.backends.quantized.engine = "fbgemm"
    model = Quantized("linear").train()
    model.qconfig = ao.get_default_qconfig("fbgemm")
    return ao.prepare(model).train()


def test_observers_go_on_with_a_wider_range_after_a_load(tmp_path):
    x, y = rows(44)
    x[18:] *= 9  # from the third batch on
    for steps in (2, 4):
        task = surestep.Task(histograms(), nn.CrossEntropyLoss(), train=(x, y))
        options = {**OPTIONS, "max_steps": steps, "data": {"shuffle": False}}
        with session_of(task, tmp_path, **options) as session:
            assert len(list(session.steps())) == 2
            session.save()
    surestep.Run(tmp_path).load_model(model := histograms(), "last")
    torch.save(task.model.state_dict(), tmp_path / "plain.pt")
    expected = histograms()
    expected.load_state_dict(torch.load(tmp_path / "plain.pt"))
    model(9 * x)
    expected(9 * x)
    assert_same(expected.state_dict(), model.state_dict())


class Averaging(torch.optim.lr_scheduler.LambdaLR):
    """Averages the parameters after each step, as a plain script does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, lambda step: 1.0)
        self.averages: list[Tensor] = []
        self.count = 0

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        if not hasattr(self, "averages"):  # the first call is torch's
            return
        own = [p.detach() for group in self.optimizer.param_groups for p in group["params"]]
        if not self.averages:
            self.averages = [parameter.clone() for parameter in own]
        else:
            torch._foreach_lerp_(self.averages, own, 0.5)


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind.startswith("quantized, linear")])
def test_quantized_average_equals_that_of_a_plain_script(folder, kind):
    from torch.ao.quantization import convert

    made: list[Averaging] = []
    expected = plain_run(kind, lambda optimizer: made.append(Averaging(optimizer)) or made[0])
    groups = made[0].optimizer.param_groups
    own = [parameter for group in groups for parameter in group["params"]]
    for parameter, average in zip(own, made[0].averages, strict=True):
        parameter.data.copy_(average)
    with session_of(task_of(kind), path := folder(), **OPTIONS, **EMA) as session:
        list(session.steps())
        session.save()
    surestep.Run(path).load_model(model := MODELS[kind](), "average")
    assert_same(expected.state_dict(), model.state_dict())
    x = rows(20)[0]
    assert torch.equal(convert(expected.eval())(x), convert(model.eval())(x))


def test_layer_of_a_different_size_is_still_an_error(tmp_path):
    def make(features: int) -> nn.Module:
        layers = nn.Linear(10, 4), nn.Unflatten(1, (features, -1)), nn.Flatten(), nn.Linear(4, 3)
        norm = nn.BatchNorm1d(features, affine=False)
        return nn.Sequential(*layers[:2], norm, *layers[2:])

    task = surestep.Task(make(4), nn.CrossEntropyLoss(), rows(44))
    with session_of(task, tmp_path, **OPTIONS) as session:
        next(session.steps())
        session.save()
    with pytest.raises(CheckpointError, match=r"2.running_mean is \(4,\) in .* but \(2,\) here"):
        surestep.Run(tmp_path).load_model(make(2), "last")


def test_half_precision_model_keeps_its_dtype(tmp_path):
    with session_of(task_of("gets wider, persistent"), tmp_path, **OPTIONS) as session:
        next(session.steps())
        session.save()
    model = MODELS["gets wider, persistent"]().half()
    surestep.Run(tmp_path).load_model(model, "last")
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float16}
