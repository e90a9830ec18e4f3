"""micro_batch_size="fit" in a process whose address space is limited: torch's own errors."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("imports torch in a process whose memory is limited")
SCRIPT = """
import resource, sys
import torch
from torch import nn
import surestep
from surestep.trainer import fit_memory

torch.set_num_threads(1)
WIDTH, BATCH = 128, 8192  # a hidden layer of a full batch takes 4 MiB


def task():
    torch.manual_seed(0)
    layers = [layer for _ in range(16) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    x = torch.randn(BATCH, 64)
    model = nn.Sequential(nn.Linear(64, WIDTH), *layers, nn.Linear(WIDTH, 4))
    return surestep.Task(model, nn.CrossEntropyLoss(), (x, torch.randint(0, 4, (BATCH,))))


def train(name, size):
    config = surestep.Config(max_steps=2, batch_size=BATCH, micro_batch_size=size,
                             checkpoint={"every": None}, cpu_allocator="default",
                             logging={"progress": "quiet"})
    with surestep.prepare(task(), config, run=name) as session:
        list(session.steps())
        weights = nn.utils.parameters_to_vector(session.model.parameters()).detach()
    sizes = [e["size"] for e in session.run.events() if e["event"] == "micro_batch"]
    return weights, sizes


train("warm", 64)  # what the first step of a process imports
fit_memory._estimate = lambda *_: None
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = pages + 90 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
found, sizes = train("fit", "fit")
assert sizes[0] == BATCH and sizes[-1] < BATCH, sizes
errors = [e["error"] for e in surestep.Run("fit").events() if "error" in e]
assert all("DefaultCPUAllocator" in error for error in errors), errors
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
expected, _ = train("set", sizes[-1])
assert torch.equal(found, expected), sizes
print(sizes)
"""


def test_step_that_the_allocator_cannot_serve_is_taken_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
