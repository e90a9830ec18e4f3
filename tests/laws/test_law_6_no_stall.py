"""Law 6: between two log points the host reads nothing from the device.

fp16, `on_nonfinite="skip"` and optimizers without a device-side skip cost one read a step, and
the Plan reports it. `tests/gpu/test_no_stall.py` checks the same with CUDA.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.base.errors import NonFiniteError
from surestep.engine.step import loop
from surestep.laws.host_reads import host_reads
from tests.laws.support.loss_cases import CASES
from tests.laws.support.nonfinite_tasks import bomb
from tests.laws.support.tasks import rows, session_of, with_batchnorm

Folder = Callable[[], Path]
OPTIONS: dict[str, Any] = {
    "max_steps": 20,
    "batch_size": 16,
    "micro_batch_size": 8,
    "logging": {"every": "15 steps"},
    "schedule": {"name": "cosine", "warmup": "3 steps"},
    "data": {"drop_last": True},
}
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "sgd": {"optim": {"name": "sgd", "momentum": 0.9}},
    "adam": {"optim": {"name": "adam", "amsgrad": True}},
    "adagrad": {"optim": {"name": "adagrad"}},
    "groups": {"optim": {"groups": ["0.* lr=0.1x", "type:BatchNorm1d decay=0"]}},
    "layer decay": {"optim": {"layerwise_lr_decay": 0.5}},
    "unfreezing": {"optim": {"groups": ["0.* freeze='5 steps'"]}},
    "one cycle": {"schedule": {"name": "one_cycle"}},
    "recomputed": {"activation_checkpointing": "0"},
    "ema": {"average": {"kind": "ema"}},
    "swa": {"average": {"kind": "swa", "start": "4 steps", "every": "2 steps"}},
    "clip by value": {"clip_value": 0.1},
    "no clip": {"max_grad_norm": "off"},
}


def reads_of(task: surestep.Task, folder: Path, count: int = 8, **options: Any) -> list[list[str]]:
    """Return the host's reads in each of some iterations after the first, from data to step."""
    with session_of(task, folder, **OPTIONS | options) as session:
        steps = session.steps()
        next(steps)
        found = []
        for _ in range(count):
            with host_reads() as reads:
                next(steps)
            found.append(reads)
        steps.close()
    return found


def task_of(model: nn.Module | None = None, loss: Any = None, **options: Any) -> surestep.Task:
    model, loss = model or with_batchnorm(), loss or nn.CrossEntropyLoss()
    return surestep.Task(model, loss, rows(200), **options)


def check_no_reads(folder: Folder, mode: str = "default", task: surestep.Task | None = None):
    """Check that the host reads nothing between two log points."""
    assert reads_of(task or task_of(), folder(), **MODES[mode]) == [[]] * 8


@pytest.mark.parametrize("mode", MODES)
def test_host_reads_nothing_between_log_points(folder, mode):
    check_no_reads(folder, mode)


@pytest.mark.parametrize("micro_batch_size", [8, 16], ids=["split", "full"])
@pytest.mark.parametrize("targets", ["classes", "weighted", "some ignored"])
def test_mixed_batches_are_not_read(folder, micro_batch_size, targets, monkeypatch):
    """Mixing partners and shares are drawn on the host, and items counted before."""
    found = watch_the_step(monkeypatch)
    x, y = rows(200)
    mixup = surestep.batch_transforms.mixup(0.4, classes=3)
    loss: nn.Module = nn.CrossEntropyLoss(torch.ones(3) if targets == "weighted" else None)
    if targets == "some ignored":
        loss = surestep.losses.multilabel(ignore_index=-1)
        y = functional.one_hot(y, 3).float().masked_fill(x[:, :3] > 1, -1)
    task = surestep.Task(with_batchnorm(), loss, (x, y), batch_transform=mixup)
    options = OPTIONS | {"micro_batch_size": micro_batch_size, "max_steps": 8}
    with session_of(task, folder(), **options) as session:
        for _ in session.steps():
            pass
    assert found == [[]] * 8


@pytest.mark.parametrize("kind", ["both", "gradient", "loss"])
def test_guard_skips_a_bad_step_without_a_read(folder, kind, monkeypatch):
    """The host reads the skip at the log point."""
    found = watch_the_step(monkeypatch)
    options = OPTIONS | {"batch_size": 8, "micro_batch_size": 8, "logging": {"every": "9 steps"}}
    with (
        session_of(bomb(kind, [5]), folder(), **options) as session,
        pytest.raises(NonFiniteError, match="Step 5 "),
    ):
        list(session.steps())
    assert found == [[]] * 9


@pytest.mark.parametrize("name", CASES)
def test_no_loss_is_read_in_forward_backward_or_step(folder, name, monkeypatch):
    """Items are counted on the host, before the batch is moved to the device."""
    found = watch_the_step(monkeypatch)
    case = CASES[name](torch.float32)
    task = surestep.Task(case.model(), case.mean_loss, case.data, items=case.items)
    with session_of(task, folder(), **OPTIONS | {"max_steps": 8}) as session:
        for _ in session.steps():
            pass
    assert found == [[]] * 8


def watch_the_step(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the reads of forward, backward and step alone."""
    found: list[list[str]] = []
    step = loop.train_step

    def watched(*args: Any) -> Any:
        with host_reads() as reads:
            result = step(*args)
        found.append(reads)
        return result

    monkeypatch.setattr(loop, "train_step", watched)
    return found


READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t.sum().item(),
    "float": lambda t: float(t.sum()),
    "int": lambda t: int(t.sum()),
    "if": lambda t: 1 if t.sum() > 0 else 0,
    "nonzero": lambda t: t.nonzero(),
    "where": lambda t: torch.where(t > 0),
    "mask": lambda t: t[t > 0],
    "mask of rows": lambda t: t[t.sum(1) > 0],
    "mask filled": lambda t: t.clone().index_put_((t.sum(1) > 0,), t[0]),
    "masked_select": lambda t: t.masked_select(t > 0),
    "unique": lambda t: t.unique(),
    "equal": lambda t: torch.equal(t, t + 1),
    "allclose": lambda t: torch.allclose(t, t),
    "cpu": lambda t: t.cpu(),
    "to cpu": lambda t: t.to("cpu"),
    "to device": lambda t: t.to(device=torch.device("cpu")),
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: t.numpy(),
    "asarray": lambda t: t.__array__(),
    "repeat": lambda t: t.new_ones(3).repeat_interleave(t.new_ones(3).long()),
}


class Reading(nn.Module):
    """A model that reads its activations."""

    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.read = with_batchnorm(), read

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.net(x)
        self.read(outputs.detach())
        return outputs


class ReadingBackward(torch.autograd.Function):
    """A function whose backward reads."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (1.0 if float(grad.sum()) > -1e9 else 0.0)


@pytest.mark.parametrize("read", READS)
def test_read_in_a_model_is_detected(folder, read):
    found = reads_of(task_of(Reading(READS[read])), folder(), 2)
    assert all(found)


@pytest.mark.parametrize("read", READS)
def test_read_in_a_loss_is_detected(folder, read):
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        READS[read](outputs.detach())
        return functional.cross_entropy(outputs, targets)

    assert all(reads_of(task_of(loss=loss), folder(), 2))


def test_read_in_a_backward_is_detected(folder):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = with_batchnorm()

        def forward(self, x: Tensor) -> Tensor:
            return ReadingBackward.apply(self.net(x))

    assert all(reads_of(task_of(Net()), folder()))


def test_copy_to_the_host_is_detected():
    """Use the dispatch mode alone, on a device that is not the CPU."""
    away = torch.zeros(3, device="meta")
    for copy in (lambda: away.cpu(), lambda: torch.zeros(3).copy_(away)):
        with host_reads() as found, pytest.raises(NotImplementedError):
            copy()
        assert "copy to the host" in found


ONE_READ: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "fp16": ({}, {"precision": "fp16"}, "fp16"),
    "skip": ({}, {"on_nonfinite": "skip"}, "skipped"),
    "own optimizer": ({"optimizer": lambda g: torch.optim.RMSprop(g, lr=1e-3)}, {}, "optimizer"),
    "fp16, skip": ({}, {"precision": "fp16", "on_nonfinite": "skip"}, "fp16"),
}


@pytest.mark.parametrize("mode", ONE_READ)
def test_mode_that_must_read_reads_once_a_step_and_the_plan_reports_it(folder, mode):
    of_task, of_config, why = ONE_READ[mode]
    with session_of(task_of(**of_task), folder(), **OPTIONS | of_config) as session:
        reason = session.plan.reason("guard")
    assert "read" in reason
    assert why in reason
    found = reads_of(task_of(**of_task), folder(), **of_config)
    assert [len(reads) for reads in found] == [1] * 8


def test_default_plan_reports_no_read(folder):
    with session_of(task_of(), folder(), **OPTIONS) as session:
        assert session.plan.reason("guard").endswith("at the next log point")
