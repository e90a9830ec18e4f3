"""Machines join and leave while torchrun runs: the weights equal an undisturbed run's."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from surestep.record.run import Run
from surestep.trainer.trainer import Trainer
from tests.multi_rank import elastic
from tests.multi_rank.torchrun import TORCHRUN, free_port, resumed_from
from tests.warm import warm_python

RECIPE = str(Path(elastic.__file__))
WAIT_S = 240.0  # ends a test that hangs, even on a busy machine
# How fast torchrun notices that a machine is gone, and how long it waits for more machines.
SOON = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def agent(folder: Path, port: int, name: str) -> subprocess.Popen[bytes]:
    """Call torchrun as on one more machine."""
    words = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "e"]
    words += ["--rdzv-conf", f"{SOON},is_host={int(name == 'stays')}", "--local-addr", "127.0.0.1"]
    told = {"ELASTIC": str(folder), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    told["PYTHON_EXEC"] = warm_python()  # what torchrun calls for a rank
    with (folder / name).open("w") as output:
        return subprocess.Popen(
            [*TORCHRUN, *words, "-m", "surestep", "--", "train", RECIPE, "--run", folder / "run"],
            stdout=output,
            stderr=output,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **told, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def wait_for(path: Path, folder: Path, *agents: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + WAIT_S
    while not path.exists():
        said = "\n".join((folder / name).read_text()[-3000:] for name in ("stays", "leaves"))
        assert all(each.poll() is None for each in agents), said
        assert time.monotonic() < end, said
        time.sleep(0.05)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for task in tasks for each in task.read_text().split()]


def end(started: subprocess.Popen[bytes]) -> None:
    """Kill torchrun and its worker at once, like a loss of power."""
    if started.poll() is None:
        for pid in [started.pid, *children(started.pid)]:
            os.kill(pid, signal.SIGKILL)
        started.wait()


@pytest.fixture(scope="module")
def changed(tmp_path_factory) -> Path:
    """Train on one machine, then on two, then on one again."""
    folder, port = tmp_path_factory.mktemp("elastic"), free_port()
    for name in ("stays", "leaves"):
        (folder / name).touch()
    stays = agent(folder, port, "stays")
    try:
        wait_for(folder / "ranks-1", folder, stays)
        leaves = agent(folder, port, "leaves")
        try:
            wait_for(folder / "ranks-2", folder, stays, leaves)
        finally:
            end(leaves)
        assert stays.wait(WAIT_S) == 0, (folder / "stays").read_text()[-4000:]
    finally:
        end(stays)
    return folder


def test_remaining_ranks_resume_from_the_newest_checkpoint(changed):
    came, went = resumed_from(changed / "run")
    assert 0 < came < went < elastic.config.max_steps
    assert Run(changed / "run").status["step"] == elastic.config.max_steps


def test_joining_and_leaving_machines_change_no_weight(changed, tmp_path):
    alone = Trainer(elastic.task(), elastic.config, run=tmp_path / "alone").fit()
    first, second = (weights_of(Run(each)) for each in (alone.path, changed / "run"))
    assert float((first - second).norm() / first.norm()) <= 1e-12


def weights_of(run: Run) -> torch.Tensor:
    net = elastic.net64()
    run.load_model(net, which="last")
    return torch.cat([each.flatten() for each in net.state_dict().values()])
