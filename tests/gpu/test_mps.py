"""A run on an Apple GPU equals the run on the CPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import surestep
from surestep.base.errors import ConfigError
from surestep.engine.device import sum_dtype
from tests import tiny

APPLE = replace(tiny.FACTS, mps=True)
needs_mps = pytest.mark.skipif(
    not torch.backends.mps.is_available(), reason="needs an Apple GPU (device='mps')"
)


def net():
    """Return a net without dropout, whose masks differ between devices."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def test_mps_is_used_only_if_it_is_set():
    plan = tiny.decide({}, APPLE)
    assert plan.device.type == "cpu"
    assert "device='mps'" in plan.reason("device")
    assert tiny.decide({"device": "mps"}, APPLE).device.type == "mps"


def test_plan_for_mps_has_no_feature_of_cuda():
    plan = tiny.decide({"device": "mps"}, APPLE)
    assert (plan.precision, plan.compile, plan.data_pin_memory) == ("fp32", "off", False)
    assert (plan.optim_implementation, plan.guard) == ("foreach", "host")
    assert sum_dtype(plan.device) == torch.float32


def test_missing_mps_is_rejected():
    with pytest.raises(ConfigError, match=r"device='mps' is not available\. This machine has: cpu"):
        tiny.decide({"device": "mps"}, tiny.FACTS)


def test_fp16_on_mps_is_rejected():
    with pytest.raises(ConfigError, match="precision='fp16' is not supported on device='mps'"):
        tiny.decide({"device": "mps", "precision": "fp16"}, APPLE)


@pytest.mark.gpu
@needs_mps
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_run_on_mps_equals_the_run_on_the_cpu(tmp_path, precision):
    def trained(device):
        x, y = torch.randn(40, 10, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
        task = surestep.Task(net(), nn.CrossEntropyLoss(), (x, y), val=(x, y))
        config = tiny.config(max_steps=20, device=device, precision=precision)
        run = surestep.Trainer(task, config, run=tmp_path / device).fit()
        model = net()
        run.load_model(model, which="last")
        return torch.cat([each.flatten() for each in model.parameters()]), run.best.metrics

    (weights, metrics), (on_cpu, cpu_metrics) = trained("mps"), trained("cpu")
    tolerance = 1e-4 if precision == "fp32" else 3e-2
    assert (weights - on_cpu).norm() / on_cpu.norm() < tolerance
    assert metrics["val/loss"] == pytest.approx(cpu_metrics["val/loss"], rel=tolerance)
