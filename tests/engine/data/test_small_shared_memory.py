"""Data workers pass tensors through /dev/shm, which is small in a container."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cli.conftest import environment

SCRIPT = """
import sys
import torch
import surestep
from torch import nn
from torch.utils.data import Dataset

class Samples(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.zeros(300_000), 0

def collate(samples):  # not torch's, which puts the batch there itself
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])

def train(collate_fn):
    model, loss = nn.Linear(300_000, 3), nn.CrossEntropyLoss()
    task = surestep.Task(model, loss, Samples(), collate_fn=collate_fn)
    options = {"data": {"num_workers": 1}, "logging": {"progress": "quiet"}}
    surestep.Trainer(task, surestep.Config(max_steps=1, batch_size=4, **options)).fit()

for collate_fn in (None, collate):
    try:
        train(collate_fn)
    except surestep.SurestepError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def folder():
    """A folder that a small /dev/shm does not hide; those of other tests may be in there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        yield Path(name)


@pytest.mark.slow("starts a process with a small /dev/shm")
def test_small_shared_memory_is_named_with_what_to_change(folder):
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("only root can mount a small /dev/shm")
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" script.py', sys.executable],
        cwd=folder,
        env=environment() | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,  # guards against hanging
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("DataError /dev/shm of 1.0 MiB is too small for the batches")
        assert "docker run --shm-size" in line
        assert "data.num_workers=0" in line
        assert "Sample" not in line
