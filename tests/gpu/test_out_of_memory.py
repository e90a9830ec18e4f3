"""What a run on a GPU says when its memory runs out: with the allocator itself."""

import gc
import json
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.engine.profile.cuda_memory import read_cuda_memory
from surestep.errors import OutOfMemoryError
from tests import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WIDTH, LIMIT = 1024, 2**30
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def limited():
    """Let this process have 1 GiB of the device."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(LIMIT / total, DEVICE)
    yield
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
    torch.cuda.empty_cache()


class KeepsHidden(nn.Module):
    """Keeps a tensor of 64 MiB from each training step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(tiny.FEATURES, WIDTH), nn.Linear(WIDTH, tiny.CLASSES)
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        if self.training:
            self.history.append(hidden.repeat(2**26 // hidden.nbytes, 1))
        return self.last(hidden)


def fail(folder: Path) -> tuple[str, dict]:
    """Return the error of a run that keeps too much, and its file."""
    task = tiny.task(model=KeepsHidden(), train=tiny.data(2048))
    config = tiny.config(batch_size=64, max_steps=30, device="cuda")
    with pytest.raises(OutOfMemoryError, match="CUDA out of memory") as caught:
        surestep.Trainer(task, config, run=folder / "run").fit()
    (path,) = (folder / "run").glob("out-of-memory-step-*.json")
    return str(caught.value), json.loads(path.read_text(encoding="utf-8"))


def test_report_has_the_numbers_of_the_allocator(tmp_path, limited):
    message, found = fail(tmp_path)
    cuda = found["cuda"]
    assert cuda["total"] == torch.cuda.get_device_properties(DEVICE).total_memory
    assert cuda["allocated"] <= cuda["reserved"] <= LIMIT
    assert cuda["reserved"] + cuda["free"] <= 1.01 * LIMIT
    assert cuda["requested"] == pytest.approx(2**26, rel=0.01)
    (kept, *_) = found["kept"]
    assert kept["path"] == "model.history[]"
    assert kept["bytes"] > 0.7 * LIMIT
    known = sum(found[kind] for kind in ("weights", "gradients", "optimizer", "activations"))
    assert known + kept["bytes"] + kept["graph_bytes"] >= 0.95 * cuda["allocated"]
    assert "model.history[]" in message
    assert "micro_batch_size=32" in message


def test_snapshot_is_one_that_the_viewer_of_pytorch_opens(tmp_path, limited):
    message, found = fail(tmp_path)
    path = tmp_path / "run" / found["snapshot"]
    assert f"https://pytorch.org/memory_viz opens {path}" in message
    with path.open("rb") as file:
        snapshot = pickle.load(file)
    assert {"segments", "device_traces"} <= snapshot.keys()


def test_lines_that_allocated_the_most_are_named(tmp_path, limited):
    torch.cuda.memory._record_memory_history()
    message, found = fail(tmp_path)
    assert Path(__file__).name in found["lines"][0]["line"]
    assert f"Allocated by: {found['lines'][0]['line']}" in message


def test_fragmentation_is_distinguished_from_need(limited):
    """64 blocks of 15 MiB, of which every second one is freed: half is free, in small parts."""
    blocks = [torch.empty(15 * 2**20, dtype=torch.uint8, device=DEVICE) for _ in range(64)]
    del blocks[::2]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(300 * 2**20, dtype=torch.uint8, device=DEVICE)
    found = read_cuda_memory(DEVICE, str(caught.value))
    if found.reserved - found.allocated > 300 * 2**20:  # the allocator could not return it
        assert found.is_fragmented
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(LIMIT, dtype=torch.uint8, device=DEVICE)
    assert not read_cuda_memory(DEVICE, str(caught.value)).is_fragmented
