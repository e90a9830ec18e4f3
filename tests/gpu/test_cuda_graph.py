"""`cuda_graph=True` on a GPU; `tests/engine/step/test_graphed_steps.py` is the same on a CPU."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import NonFiniteError, TaskError
from surestep.trainer.session import Session
from tests.engine.step.test_graphed_steps import MODES, run
from tests.gpu.test_no_stall import sync_debug
from tests.laws.support.nonfinite_tasks import BATCH, bomb
from tests.laws.support.tasks import assert_same, rows, session_of, snapshot, with_batchnorm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
OPTIONS: dict[str, Any] = {
    "max_steps": 30,
    "batch_size": 16,
    "micro_batch_size": 8,
    "device": "cuda",
    "deterministic": True,
    "logging": {"every": "25 steps"},
    "schedule": {"name": "cosine", "warmup": "3 steps"},
}


class OwnGenerator(nn.Module):
    """Draws noise from its own generator on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.generator = with_batchnorm(), torch.Generator("cuda")

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, device=x.device, generator=self.generator)
        out: Tensor = self.net(x + 0.1 * noise)
        return out


def graphed(
    folder: Path, model: Callable[[], nn.Module] = with_batchnorm, *, on: bool, **options: Any
) -> Session:
    task = surestep.Task(model(), nn.CrossEntropyLoss(), rows(328))  # the last batch has 8
    return session_of(task, folder, cuda_graph=on, **OPTIONS | options)


@pytest.mark.parametrize("mode", MODES)
def test_replayed_steps_are_bitwise_those_of_the_loop(mode, tmp_path):
    options = {"micro_batch_size": 8} | MODES[mode]
    plain = run(graphed(tmp_path / "plain", on=False, **options))
    assert_same(run(graphed(tmp_path / "graphs", on=True, **options)), plain)


def test_generators_of_a_model_are_seeded_for_each_replay(tmp_path):
    plain = run(graphed(tmp_path / "plain", OwnGenerator, on=False))
    assert_same(run(graphed(tmp_path / "graphs", OwnGenerator, on=True)), plain)


def test_data_workers_and_saves_run_while_a_step_is_recorded(tmp_path):
    options = {"data": {"num_workers": 2}, "checkpoint": {"every": "2 steps"}}
    plain = run(graphed(tmp_path / "plain", on=False, **options))
    assert_same(run(graphed(tmp_path / "graphs", on=True, **options)), plain)


def test_a_replayed_step_does_not_wait_or_allocate(tmp_path):
    with graphed(tmp_path, on=True) as session:
        steps = session.steps()
        for _ in range(4):
            next(steps)
        torch.cuda.synchronize()
        blocks = torch.cuda.memory_stats()["segment.all.allocated"]
        with sync_debug("error"):
            for _ in range(8):
                next(steps)
        assert torch.cuda.memory_stats()["segment.all.allocated"] == blocks
        steps.close()


def test_a_step_that_is_not_finite_changes_nothing(tmp_path):
    states = []
    for on in (False, True):
        options = OPTIONS | {"batch_size": BATCH, "cuda_graph": on}
        with session_of(bomb("both", [6]), tmp_path / str(on), **options) as session:
            with pytest.raises(NonFiniteError, match="Step 6"):
                list(session.steps())
            states.append(snapshot(session))
    assert_same(*states)


class Reading(nn.Module):
    """A model that reads its activations in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.net = with_batchnorm()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out * (1 + 0 * out.mean().item())


def test_a_model_that_reads_the_device_is_rejected_with_its_line(tmp_path):
    with (
        graphed(tmp_path, Reading, on=True) as session,
        pytest.raises(TaskError, match=r"cannot be recorded.*test_cuda_graph\.py, line \d+"),
    ):
        list(session.steps())


def test_replays_are_faster_than_launches(tmp_path):
    seconds = {}
    for on in (False, True):
        with graphed(tmp_path / str(on), on=on, max_steps=400, deterministic=False) as session:
            steps = session.steps()
            for _ in range(20):
                next(steps)
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(300):
                next(steps)
            torch.cuda.synchronize()
            seconds[on] = time.perf_counter() - began
            steps.close()
    assert seconds[True] < seconds[False]
