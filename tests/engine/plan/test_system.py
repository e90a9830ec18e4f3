import sys
from types import SimpleNamespace

import pytest
import torch

from surestep.engine.plan.system import read_system


def test_system_is_read():
    system = read_system()
    assert system.torch_version == torch.__version__
    assert system.cpus >= 1
    assert system.threads == torch.get_num_threads()
    assert len(system.cuda_devices) == len(system.cuda_memory)


def test_no_bf16_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    system = read_system()
    assert (system.cuda_devices, system.bf16_native, system.tf32) == ((), False, False)


def gpus(monkeypatch, *generations):
    cards = [
        SimpleNamespace(name="card", total_memory=1, major=major, uuid=f"card-{index}")
        for index, major in enumerate(generations)
    ]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setattr(torch.cuda, "get_device_properties", cards.__getitem__)
    return read_system()


def test_bf16_is_native_only_if_all_gpus_support_it(monkeypatch):
    assert gpus(monkeypatch, 9, 8).bf16_native
    assert not gpus(monkeypatch, 9, 7).bf16_native


def test_gpus_are_identified_by_uuid(monkeypatch):
    assert gpus(monkeypatch, 9, 9).cuda_ids == ("card-0", "card-1")


TORCHRUN = {
    **{"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    **{"MASTER_ADDR": "here", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"},
}
SRUN = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("environment", "count", "own"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1, False),  # a single process
        (SRUN, 1, True),  # --gpus-per-task=1
        (SRUN, 2, False),
        (TORCHRUN, 1, False),
        (TORCHRUN | {"CUDA_VISIBLE_DEVICES": "1"}, 1, True),  # set for each process
        (TORCHRUN | {"CUDA_VISIBLE_DEVICES": "0,1"}, 2, False),
        # surestep starts all ranks with one environment, so they share the GPU.
        (TORCHRUN | {"CUDA_VISIBLE_DEVICES": "0", "SURESTEP_NPROC": "2"}, 1, False),
    ],
)
def test_single_visible_gpu_is_own_only_if_the_launcher_set_it(
    monkeypatch, environment, count, own
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert gpus(monkeypatch, *[9] * count).has_own_gpu is own


def test_display_follows_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    assert read_system().display == "terminal"
    monkeypatch.setattr(sys, "stderr", None)
    assert read_system().display == "none"


def test_notebook_is_detected_by_its_kernel(monkeypatch):
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert read_system().display == "notebook"
