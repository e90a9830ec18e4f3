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


def linear():
    # A hidden layer of a full batch takes 4 MiB.
    layers = [layer for _ in range(16) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 128), *layers, nn.Linear(128, 4)), torch.randn(8192, 64)


def convolutions():
    # oneDNN allocates about as much for a convolution as its outputs take.
    layers = [
        layer for _ in range(3) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
    ]
    end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *layers, *end), torch.randn(256, 3, 16, 16)


make, room, known = {
    "linear": (linear, 90, "DefaultCPUAllocator"),
    "convolutions": (convolutions, 16, ""),  # also "could not create a primitive"
}[sys.argv[1]]


def train(name, size):
    torch.manual_seed(0)
    model, x = make()
    task = surestep.Task(model, nn.CrossEntropyLoss(), (x, torch.randint(0, 4, (len(x),))))
    # One step: where memory is fragmented, a second one may need a size that is smaller still.
    config = surestep.Config(max_steps=1, batch_size=len(x), micro_batch_size=size,
                             checkpoint={"every": None}, cpu_allocator="default",
                             logging={"progress": "quiet"})
    with surestep.prepare(task, config, run=name) as session:
        list(session.steps())
        weights = nn.utils.parameters_to_vector(session.model.parameters()).detach()
    sizes = [e["size"] for e in session.run.events() if e["event"] == "micro_batch"]
    return weights, sizes


train("warm", 64)  # what the first step of a process imports
fit_memory._estimate = lambda *_: None
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = pages + room * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
found, sizes = train("fit", "fit")
assert sizes[-1] < sizes[0], sizes
errors = [e["error"] for e in surestep.Run("fit").events() if "error" in e]
assert all(known in error for error in errors), errors
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
expected, _ = train("set", sizes[-1])
assert torch.equal(found, expected), sizes
print(sizes)
"""


@pytest.mark.parametrize("model", ["linear", "convolutions"])
def test_step_that_the_allocator_cannot_serve_is_taken_again(tmp_path, monkeypatch, model):
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, model],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
