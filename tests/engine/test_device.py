"""The Plan's device is the current CUDA device while a run is open."""

import subprocess
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from surestep.config.config import Config
from surestep.engine.device import ran_out, ran_out_on_host, use_device
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


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    ],
    ids=str,
)
def test_memory_of_a_device_that_ran_out_is_known(error):
    assert ran_out(error)
    assert not ran_out_on_host(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("unable to mmap 26 bytes from file <x>: Cannot allocate memory (12)"),
    ],
    ids=repr,
)
def test_memory_of_the_host_that_ran_out_is_known(error):
    assert ran_out(error)
    assert ran_out_on_host(error)


ONEDNN = [f"could not {what}" for what in ("create a primitive", "create a memory object")]


@pytest.mark.parametrize("text", [*ONEDNN, "could not execute a primitive"])
@pytest.mark.parametrize("is_limited", [True, False])
def test_failure_of_onednn_is_memory_if_this_process_has_a_limit(monkeypatch, text, is_limited):
    monkeypatch.setattr("surestep.engine.host_memory.limits_allocation", lambda: is_limited)
    assert ran_out(RuntimeError(text)) == ran_out_on_host(RuntimeError(text)) == is_limited


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("could not create a primitive descriptor for the matmul primitive"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("DefaultCPUAllocator"),
        OSError(28, "No space left on device"),
    ],
    ids=repr,
)
def test_other_errors_are_not_memory(monkeypatch, error):
    monkeypatch.setattr("surestep.engine.host_memory.limits_allocation", lambda: True)
    assert not ran_out(error)


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
