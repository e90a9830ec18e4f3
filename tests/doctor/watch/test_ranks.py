"""Findings of several ranks are one list, which one process prints."""

import json
import os
import signal
import subprocess

import pytest

from tests.warm import warm_python

pytestmark = pytest.mark.slow("launches several processes")
MISTAKE = """
import os, sys, time
import torch
import torch.distributed as dist

def train(rank, world):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", sys.argv[-1])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(8):
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
    alone = torch.nn.Linear(4, 1)
    other = torch.optim.SGD(alone.parameters(), lr=0.01)
    for step in range(8 * rank):
        alone(torch.randn(8, 4)).pow(2).mean().backward()
        other.step()
    {end}
"""
# Ranks end without `destroy_process_group`: on a busy machine torch once waited in it forever for
# a thread of gloo that had nothing to do. A spawned process frees everything, and needs it.
TORCHRUN = 'if __name__ == "__main__":\n    train(int(os.environ["RANK"]), 2)\n'
SPAWN = 'if __name__ == "__main__":\n    torch.multiprocessing.spawn(train, args=(2,), nprocs=2)\n'
DESTROY = "dist.destroy_process_group()"
SHARED, ONLY_SECOND = 14, 19  # lines of the two steps


def write(folder, start, end=""):
    path = folder / "script.py"
    path.write_text(MISTAKE.format(end=end) + start)
    return path


def read_findings(path):
    found = json.loads(path.read_text())["findings"]
    return {(finding["rule"], finding["line"]): finding["evidence"]["ranks"] for finding in found}


def launch(folder, *words, **options):
    command = [warm_python(), "-m", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=200, **options
    )


TORCHRUN_WATCH = (
    *("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "surestep", "watch", "--json", "found.json"),
)


def test_ranks_of_torchrun_are_merged(tmp_path):
    write(tmp_path, TORCHRUN)
    done = launch(tmp_path, *TORCHRUN_WATCH, "script.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("surestep watch: ") == 1
    assert "2 findings in 16 steps on 2 ranks." in done.stderr
    assert read_findings(tmp_path / "found.json") == {
        ("SS101", SHARED): [0, 1],
        ("SS101", ONLY_SECOND): [1],
    }
    none = launch(tmp_path, *TORCHRUN_WATCH, "--select", "SS103", "script.py")
    assert "nothing found in 16 steps on 2 ranks." in none.stderr


def test_rank_that_fails_does_not_hide_the_findings(tmp_path):
    write(tmp_path, TORCHRUN, "if rank == 1: raise ValueError('broken')\n    time.sleep(100)")
    done = launch(tmp_path, *TORCHRUN_WATCH, "script.py")
    assert done.returncode == 1
    assert "ValueError: broken" in done.stderr
    assert done.stderr.count("surestep watch: ") == 1
    assert ("SS101", SHARED) in read_findings(tmp_path / "found.json")


def test_processes_of_spawn_are_merged(tmp_path):
    from tests.multi_rank.torchrun import free_port

    write(tmp_path, SPAWN, DESTROY)
    words = ("--json", "found.json", "script.py", str(free_port()))
    done = launch(tmp_path, "surestep", "watch", *words)
    assert done.returncode == 0, done.stderr
    assert "2 findings in 16 steps on 2 ranks." in done.stderr
    assert read_findings(tmp_path / "found.json") == {
        ("SS101", SHARED): [0, 1],
        ("SS101", ONLY_SECOND): [1],
    }


def test_findings_are_printed_before_sigterm_ends_the_script(tmp_path):
    text = (
        "import torch, time\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "for step in range(8):\n"
        "    model(torch.randn(8, 4)).pow(2).mean().backward()\n"
        "    optimizer.step()\n"
        "print('trained', flush=True)\n"
        "time.sleep(100)\n"
    )
    (tmp_path / "script.py").write_text(text)
    command = [warm_python(), "-m", "surestep", "watch", "script.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "trained\n"
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGTERM
    assert "SS101" in stderr
