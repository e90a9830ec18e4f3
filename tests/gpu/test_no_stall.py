"""Law 6 on a GPU: CUDA raises if the host waits for the device between log points."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from tests.laws.support.tasks import Augmented, rows, session_of, with_batchnorm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda t: t.sum().item(),
    "if": lambda t: 1 if t.sum() > 0 else 0,
    "nonzero": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 0],
    "cpu": lambda t: t.cpu(),
    "tolist": lambda t: t.tolist(),
}
OPTIONS: dict[str, Any] = {
    "max_steps": 30,
    "batch_size": 16,
    "micro_batch_size": 8,
    "device": "cuda",
    "logging": {"every": "25 steps"},
    "schedule": {"name": "cosine", "warmup": "3 steps"},
    "data": {"drop_last": True},
}


@contextmanager
def sync_debug(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that this is a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def task_of(model: nn.Module | None = None, data: Any = None, **options: Any) -> surestep.Task:
    model, data = model or with_batchnorm(), data or rows(320)
    return surestep.Task(model, nn.CrossEntropyLoss(), data, **options)


def run_between_log_points(task: surestep.Task, folder: Path, mode: str, **options: Any) -> None:
    """Take eight full steps in CUDA's sync debug mode, after a few to warm up."""
    with session_of(task, folder, **OPTIONS | options) as session:
        steps = session.steps()
        for _ in range(4):
            next(steps)
        with sync_debug(mode):
            for _ in range(8):
                next(steps)
        steps.close()


MODES: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "tf32": {"precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "sgd": {"optim": {"name": "sgd", "momentum": 0.9}},
    "clip by value": {"clip_value": 0.1},
    "no clip": {"max_grad_norm": "off"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("data", [lambda: rows(320), lambda: Augmented(320)], ids=["memory", "own"])
def test_host_never_waits_between_log_points(tmp_path, data, mode):
    if mode == "tf32" and torch.cuda.get_device_capability()[0] < 8:
        pytest.skip("tf32 needs a GPU of the Ampere generation or newer")
    run_between_log_points(task_of(data=data()), tmp_path / "run", "error", **MODES[mode])


def test_masked_targets_are_counted_before_they_are_moved(tmp_path):
    x, y = rows(320)
    y[::3] = -100
    run_between_log_points(task_of(data=(x, y)), tmp_path / "run", "error")


class Reading(nn.Module):
    """A model that reads its own activations."""

    def __init__(self, read: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.read = with_batchnorm(), read

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.net(x)
        self.read(outputs.detach())
        return outputs


@pytest.mark.parametrize("read", READS)
def test_read_in_a_model_is_detected(tmp_path, read):
    """The CPU's modes and CUDA's sync debug mode detect the same reads."""
    with pytest.raises(RuntimeError, match="called a synchronizing"):
        run_between_log_points(task_of(Reading(READS[read])), tmp_path / "run", "error")


ONE_READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fp16": ({}, {"precision": "fp16"}),
    "skip": ({}, {"on_nonfinite": "skip"}),
    "own optimizer": (
        {"optimizer": lambda groups: torch.optim.RMSprop(groups, lr=1e-3, foreach=True)},
        {},
    ),
}


@pytest.mark.parametrize("mode", ONE_READ)
def test_mode_that_must_read_waits_once_a_step(tmp_path, mode):
    of_task, of_config = ONE_READ[mode]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_between_log_points(task_of(**of_task), tmp_path / "run", "warn", **of_config)
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    assert len(waits) == 8
