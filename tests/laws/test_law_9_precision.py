"""Law 9: the model runs in the precision of the Plan."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.config.config import Config
from surestep.engine.plan.plan import TaskInfo
from surestep.engine.plan.system import SystemInfo, read_system
from surestep.engine.resolve.resolver import resolve
from tests.laws.support.tasks import rows, session_of

Folder = Callable[[], Path]
SEEN = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "auto": torch.float32,  # on a CPU
}


class Probe(nn.Module):
    """A model that records the dtype of its activations and of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(10, 16), nn.Linear(16, 3)
        self.activations: set[torch.dtype] = set()
        self.weights: set[torch.dtype] = set()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        outputs = self.last(hidden.relu())
        self.activations |= {hidden.dtype, outputs.dtype}
        self.weights |= {parameter.dtype for parameter in self.parameters()}
        return outputs


def check_precision(folder: Folder, precision: str) -> None:
    """Train and evaluate, and check the dtypes that the model saw."""
    probe = Probe()
    task = surestep.Task(probe, nn.CrossEntropyLoss(), rows(), val=rows(20))
    with session_of(
        task, folder(), max_steps=3, batch_size=16, device="cpu", precision=precision
    ) as session:
        for result in session.steps():
            assert result.loss.dtype == torch.float32
        assert probe.activations == {SEEN[precision]}
        session.evaluate()
    assert probe.activations == {SEEN[precision]}
    assert probe.weights == {torch.float32}
    assert all(parameter.grad.dtype == torch.float32 for parameter in probe.parameters())
    moments = session.optimizer.state_dict()["state"].values()
    assert all(slots["exp_avg"].dtype == torch.float32 for slots in moments)


@pytest.mark.parametrize("precision", SEEN)
def test_model_sees_the_planned_precision(folder, precision):
    check_precision(folder, precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_fp16_scales_the_loss(folder, precision):
    task = surestep.Task(Probe(), nn.CrossEntropyLoss(), rows())
    with session_of(task, folder(), max_steps=1, precision=precision) as session:
        assert not session.state.scaler.is_enabled()


def test_scaler_is_made_from_the_config(folder):
    scaler = {
        "init_scale": 8.0,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 5,
    }
    task = surestep.Task(Probe(), nn.CrossEntropyLoss(), rows())
    with session_of(task, folder(), max_steps=1, precision="fp16", scaler=scaler) as session:
        held = session.state.scaler.state_dict()
    scaler["scale"] = scaler.pop("init_scale")
    assert {name: held[name] for name in scaler} == scaler


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_learns_what_full_precision_learns(folder, precision):
    """Autocast trains the same weights to within the rounding of the precision."""
    weights = []
    for setting in ("fp32", precision):
        task = surestep.Task(Probe(), nn.CrossEntropyLoss(), rows())
        with session_of(task, folder(), max_steps=10, batch_size=16, precision=setting) as session:
            list(session.steps())
        flat = [parameter.detach().flatten() for parameter in session.model.parameters()]
        weights.append(torch.cat(flat))
    assert not torch.equal(*weights)
    assert (weights[0] - weights[1]).norm() / weights[0].norm() < 2e-2


def machine(**system: object) -> SystemInfo:
    return replace(read_system(), **system)


@pytest.mark.parametrize(
    ("system", "precision"),
    [
        ({"cuda_devices": ("A100",), "bf16_native": True}, "bf16"),
        ({"cuda_devices": ("T4",), "bf16_native": False}, "fp32"),
        ({"cuda_devices": ()}, "fp32"),
    ],
)
def test_auto_is_bf16_only_where_a_gpu_has_it_natively(system, precision):
    given = TaskInfo(train_samples=64, in_memory=True)
    plan = resolve(Config(epochs=1), machine(**system), given)
    assert plan.precision == precision
    assert "bf16" in plan.reason("precision")
