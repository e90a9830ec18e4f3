"""Predictions need not fit into memory, tested in a process with a memory limit."""

import subprocess
import sys

import numpy as np
import pytest

from tests.warm import warm_python

CODE = """
import resource, sys
from pathlib import Path
import torch
import surestep
from surestep.engine.metrics import row_buffer
from surestep.record.prediction_files import open_predictions

out, limit = Path(sys.argv[1]), int(sys.argv[2])
row_buffer.LIMIT = limit * 2**20


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return (x * self.weight).expand(-1, 5000)


x = torch.arange(10_000.0)[:, None]
task = surestep.Task(
    Wide(),
    lambda outputs, targets: outputs.mean(),
    train=(x[:64], x[:64]),
    test=(x,),
    val=(x, x),
    metrics={"last": surestep.whole_set(lambda o, t: {"last": o[-1, -1], "rows": len(o)})},
)
# The reserve of huge pages would be room that is counted as used.
config = surestep.Config(
    max_steps=1, batch_size=64, cpu_allocator="retain", logging={"progress": "quiet"}
)
with surestep.prepare(task, config, run=out.parent / "run") as session:
    # 190 MiB of predictions, and 60 MiB more than there is before them.
    size = [line for line in open("/proc/self/status") if line.startswith("VmData")][0].split()[1]
    most = int(size) * 1024 + 60 * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    found = session.predict("test")
    with open_predictions(out) as write:
        write(found.arrays)
    metrics = session.evaluate()
    assert (metrics["val/last_last"], metrics["val/last_rows"]) == (9_999, 10_000), metrics
"""


def child(path, limit):
    command = [warm_python(), "-c", CODE, str(path), str(limit)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_predictions_and_whole_set_metrics_need_not_fit_into_memory(tmp_path, ending):
    done = child(tmp_path / f"p.{ending}", limit=16)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / f"p.{ending}").stat().st_size > 190 * 2**20
    if ending == "npz":
        found = np.load(tmp_path / "p.npz")["output"]
        assert found.shape == (10_000, 5000)
        assert (found[:, [0, -1]] == np.arange(10_000)[:, None]).all()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_predictions_buffered_in_memory_exceed_the_limit(tmp_path):
    done = child(tmp_path / "p.npz", limit=10_000)
    assert done.returncode != 0
    assert "memory" in done.stderr.lower() or "alloc" in done.stderr.lower()
    assert not (tmp_path / "p.npz").exists()
