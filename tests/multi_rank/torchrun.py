"""torchrun with processes that are to die, and what their run came to."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from surestep.record.run import Run
from tests.multi_rank.mortal import task

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def launch(*words: str, deaths: str = "", slow_saves: float = 0.0, timeout_s: float = 300):
    """Call torchrun on this machine; return what came of it."""
    said = {"DEATHS": deaths, "SLOW_SAVES": str(slow_saves), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*TORCHRUN, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **said},
    )


def last_weights(folder: Path) -> torch.Tensor:
    net = task().model
    Run(folder).load_model(net, which="last")
    return torch.cat([each.flatten() for each in net.state_dict().values()])


def resumed_from(folder: Path) -> list[int]:
    return [each["step"] for each in Run(folder).events() if each["event"] == "resume"]
