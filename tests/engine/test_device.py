"""The Plan's device is the current CUDA device while a run is open."""

import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from surestep.config.config import Config
from surestep.engine.device import use_device
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.model.precision import torch_settings
from surestep.recipes.load import load
from surestep.trainer import planning, prepare
from surestep.trainer.planning import plan_task
from tests import tiny
from tests.warm import warm_python

TWO = replace(
    tiny.TWO_GPUS,
    launched=LaunchInfo(rank=1, size=2, local_rank=1, local_size=2, launcher="torchrun"),
)


class FakeGPUs:
    """Two simulated GPUs: the current device, and the devices it was set to."""

    def __init__(self, monkeypatch):
        self.now, self.was = 0, []
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "device", self.device)

    @contextmanager
    def device(self, device):
        before, self.now = self.now, device.index
        self.was.append(device.index)
        try:
            yield
        finally:
            self.now = before


@pytest.fixture
def cards(monkeypatch):
    return FakeGPUs(monkeypatch)


def test_use_device_sets_the_current_device_temporarily(cards):
    with use_device(torch.device("cuda", 1)):
        assert cards.now == 1
    assert cards.now == 0


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:7"])
def test_devices_without_a_local_index_do_not_change_the_current_device(cards, device):
    """cuda:7 is on a different machine; a plan can be made for one."""
    with use_device(torch.device(device)):
        assert cards.now == 0
    assert cards.was == []


def test_torch_settings_set_the_current_device_to_that_of_the_plan(cards):
    plan = tiny.decide({"parallel.strategy": "ddp"}, TWO)
    with torch_settings(plan):
        assert cards.now == plan.device.index == 1
    assert cards.now == 0


def test_model_is_built_on_the_device_of_its_rank(cards):
    seen = []

    def build():
        seen.append(cards.now)
        return tiny.model()

    plan_task(tiny.task(model=build), tiny.config(), system=TWO)
    assert seen == [1]
    assert cards.now == 0


def test_recipe_is_loaded_on_the_device_of_its_rank(cards, monkeypatch, tmp_path):
    source = tmp_path / "seen.py"
    source.write_text(
        "import torch, surestep\nfrom tests import tiny\n\n"
        "def task() -> surestep.Task:\n"
        "    with torch.cuda.device(torch.device('cuda', 0)):\n        pass\n"
        "    return tiny.task()\n"
    )
    monkeypatch.setattr("surestep.recipes.load.read_system", lambda: TWO)
    load(str(source)).build({}, Config(epochs=1))
    assert cards.was == [1, 0]  # the recipe's device is nested in ours
    assert cards.now == 0


def test_process_group_is_opened_on_the_device_of_the_rank(cards, monkeypatch, tmp_path):
    """NCCL and FSDP use the current device."""
    seen = []

    class OpenedHere(Exception):
        pass

    def open_world(*_, **__):
        seen.append(cards.now)
        raise OpenedHere

    monkeypatch.setattr(planning, "read_system", lambda: TWO)
    monkeypatch.setattr(prepare, "join_process_group", open_world)
    with pytest.raises(OpenedHere):
        tiny.prepare(tmp_path, {"model": nn.Linear(tiny.FEATURES, tiny.CLASSES)})
    assert seen == [1]
    assert cards.now == 0


def test_device_without_float64_trains(tmp_path):
    """A stub of MPS refuses float64: metrics, losses with weights, log points, histograms."""
    command = [warm_python(), "-m", "tests.engine.without_float64"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.endswith("trained without float64\n"), done.stderr
