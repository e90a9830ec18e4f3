"""What is read of a CUDA device, by stubs of torch's functions."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from surestep.engine.profile import cuda_memory
from surestep.engine.profile.cuda_memory import list_allocating_lines, read_cuda_memory

GIB = 2**30
DEVICE = torch.device("cuda", 0)
# As torch 2.13 writes it.
ERROR = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 24.00 GiB of "
    "which 1.00 GiB is free. {others}Including non-PyTorch memory, this process has 20.00 GiB "
    "memory in use. {allowed}Of the allocated memory 18.00 GiB is allocated by PyTorch, and 1.50 "
    "GiB is reserved by PyTorch but unallocated."
)


def read(monkeypatch, *, free=1, allocated=18, reserved=19.5, others="", allowed="", error=ERROR):
    """Read a device of 24 GiB after an error; all in GiB."""
    stubs = {
        "mem_get_info": (round(free * GIB), 24 * GIB),
        "memory_reserved": round(reserved * GIB),
        "memory_allocated": round(allocated * GIB),
        "max_memory_allocated": 19 * GIB,
        "get_device_properties": SimpleNamespace(uuid="abc"),
    }
    for name, value in stubs.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    return read_cuda_memory(DEVICE, error.format(others=others, allowed=allowed))


def nvidia_smi(monkeypatch, text, code=0):
    done = subprocess.CompletedProcess((), code, text)
    monkeypatch.setattr(cuda_memory.subprocess, "run", lambda *_, **__: done)


def test_need_is_not_taken_for_fragmentation(monkeypatch):
    found = read(monkeypatch, allocated=19, reserved=19.5)
    assert not found.is_fragmented
    assert found.describe() == (
        "Of the device's 24.0 GiB, torch has reserved 19.5 GiB and allocated 19.0 GiB, and "
        "1.0 GiB are free. Other processes use 3.0 GiB of this GPU."
    )


def test_fragmentation_that_is_missing_is_named(monkeypatch):
    found = read(monkeypatch)
    assert found.requested == 2 * GIB
    assert found.is_fragmented
    assert not found.is_expandable
    assert "would fit into what is reserved and not allocated" in found.describe()
    assert not read(monkeypatch, free=2.5).is_fragmented


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_of_the_environment_are_noticed(monkeypatch, name):
    monkeypatch.setenv(name, "max_split_size_mb:64,expandable_segments:True")
    assert read(monkeypatch).is_expandable


def test_processes_that_torch_names_share_the_device(monkeypatch):
    found = read(monkeypatch, others="Process 41 has 3.00 GiB memory in use. ")
    assert found.is_shared
    assert found.others == 3 * GIB
    assert "Other processes use 3.0 GiB of this GPU: pid 41." in found.describe()


def test_processes_are_listed_by_nvidia_smi_if_torch_names_none(monkeypatch):
    text = "GPU-abc, 77, 3072, python train.py, 2\nGPU-abc, 78, [N/A], x\nGPU-other, 79, 9, y\n"
    nvidia_smi(monkeypatch, text)
    found = read(monkeypatch, error="CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert [tuple(one) for one in found.processes] == [
        (77, 3 * GIB, "python train.py, 2"),
        (78, None, "x"),
    ]
    assert "pid 77, python train.py, 2; pid 78, x." in found.describe()


def test_context_of_cuda_is_not_another_process(monkeypatch):
    found = read(monkeypatch, free=4, error="CUDA out of memory.")
    assert (found.others, found.requested) == (GIB // 2, None)
    assert not found.is_shared


@pytest.mark.parametrize("failure", [OSError, subprocess.TimeoutExpired(("nvidia-smi",), 2)])
def test_missing_nvidia_smi_names_no_process(monkeypatch, failure):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(cuda_memory.subprocess, "run", fail)
    found = read(monkeypatch, error="CUDA out of memory.")
    assert found.is_shared
    assert found.processes == ()
    nvidia_smi(monkeypatch, "No devices were found", code=6)
    assert read(monkeypatch, error="CUDA out of memory.").processes == ()


def test_memory_that_this_process_may_not_use_is_not_free(monkeypatch):
    """After torch.cuda.set_per_process_memory_fraction."""
    found = read(monkeypatch, free=12, allowed="20.00 GiB allowed; ")
    assert found.free == GIB // 2
    assert found.limit == 20 * GIB


def test_lines_of_the_user_are_added_up(monkeypatch):
    def block(size, *frames, state="active_allocated"):
        listed = [{"filename": file, "line": line, "name": "f"} for file, line in frames]
        return {"size": size, "state": state, "frames": listed}

    torch_file = torch.nn.functional.__file__
    blocks = [
        block(5, ("??", 0), (torch_file, 9), ("/home/me/model.py", 12), ("/home/me/train.py", 3)),
        block(6, (torch_file, 9), ("/home/me/model.py", 12)),
        block(20, ("/home/me/train.py", 4)),
        block(90, ("/home/me/train.py", 4), state="inactive"),
        block(3, (torch_file, 9)),
        block(7),
    ]
    segments = [{"device": 0, "blocks": blocks}, {"device": 1, "blocks": blocks}]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    found = [tuple(one.values()) for one in list_allocating_lines(DEVICE)]
    assert found == [
        ("/home/me/train.py:4", 1, 20),
        ("/home/me/model.py:12", 2, 11),
        ("torch/nn/functional.py:9", 1, 3),
    ]
    del blocks[:-1]
    assert list_allocating_lines(DEVICE) == []
