"""The sbatch file, run by a fake Slurm made of two small scripts."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from surestep.record.run import Run
from tests.cli.conftest import RECIPE, environment

PYTHON = sys.executable  # whose start imports nothing, unlike that of a warm process
SRUN = """#!{python}
import os, signal, subprocess, sys
words = [word for word in sys.argv[1:] if not word.startswith("--kill")]
words = words if words else sys.exit("srun: no command")
tasks = []
def hand_on(number, frame):
    for task in tasks:
        task.send_signal(number)
    open("signaled", "x").close()
signal.signal(signal.SIGUSR1, hand_on)
for rank in range(2):
    own = {{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NTASKS": "2"}}
    tasks.append(subprocess.Popen(words, env={{**os.environ, **own, "SLURM_NNODES": "1"}}))
sys.exit(max(task.wait() for task in tasks))
"""
SCONTROL = """#!/bin/sh
echo "$*" >> calls
[ "$1" = show ] && echo localhost
"""
FSDP = ("--parallel.shard", "full")
# In its second step of the first start, time is almost up: Slurm signals the processes. They wait
# for it, since on a busy machine they could take the last steps before. Four more steps follow, in
# whose messages the ranks agree on the stop.
WARNED = (
    RECIPE
    + """
import os, signal, time
class Slurm(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 2:
            if os.environ["SLURM_PROCID"] == "0":
                os.kill(os.getppid(), signal.SIGUSR1)
            while not os.path.exists("signaled"):
                time.sleep(0.01)

callbacks = [Slurm()]
"""
)


@pytest.fixture
def slurm(folder):
    """Run an sbatch file in the folder; return its result."""
    for name, text in (("srun", SRUN.format(python=PYTHON)), ("scontrol", SCONTROL)):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def sbatch(file: str) -> subprocess.CompletedProcess[str]:
        job = {"SLURM_JOB_ID": str(10_000 + os.getpid() % 10_000), "SLURM_JOB_NODELIST": "here"}
        paths = f"{folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", file],
            capture_output=True,
            text=True,
            timeout=300,
            env={**environment(), **job, "PATH": paths, "OMP_NUM_THREADS": "1"},
        )

    return sbatch


def calls(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "calls").read_text().splitlines()]


def test_signaled_job_is_requeued_until_its_run_is_finished(surestep, recipe, folder, slurm):
    written = surestep("new", "--slurm", recipe(WARNED), "--nproc", "2", "--run", "r")
    assert (written.code, "Next: sbatch mine.sbatch" in written.out) == (0, True)
    first = slurm("mine.sbatch")
    status = Run(folder / "r").status
    assert (status["status"], status["reason"]) == ("stopped", "SIGUSR1"), first.stderr
    assert (first.returncode, calls(folder)) == (75, ["show", "requeue"])
    assert "r can be resumed: job" in first.stdout
    second = slurm("mine.sbatch")
    assert "Resuming r from step" in second.stderr
    assert Run(folder / "r").status["status"] == "finished", second.stderr
    assert (second.returncode, calls(folder)) == (0, ["show", "requeue", "show"])


@pytest.mark.parametrize("mark", ['{"status": "stopped", "resumable": true}', None])
def test_job_that_failed_before_training_is_not_requeued(surestep, recipe, folder, slurm, mark):
    surestep("new", "--slurm", recipe(), "--run", "r")
    (folder / "bin" / "srun").write_text("#!/bin/sh\nexit 3\n")
    if mark is not None:
        (folder / "r").mkdir()
        (folder / "r" / "status.json").write_text(mark)
    assert slurm("mine.sbatch").returncode == 3
    assert calls(folder) == ["show"]


def test_sbatch_file_requests_the_given_resources(surestep, recipe, folder):
    words = ["--nodes", "2", "--nproc", "4", "--gpus", "--time", "8:00:00", "--out", "job"]
    answer = surestep("new", "--slurm", recipe(), *words, "--epochs", "3", "--task.hidden", "9")
    assert answer.code == 0
    text = (folder / "job").read_text()
    for asked in ("nodes=2", "ntasks-per-node=4", "gpus-per-node=4", "time=8:00:00"):
        assert f"#SBATCH --{asked}\n" in text
    for asked in ("requeue", "open-mode=append", "signal=USR1@120"):
        assert f"#SBATCH --{asked}\n" in text
    assert 'surestep train mine.py --epochs 3 --task.hidden 9 --run "$run"' in text
    assert "run=runs/mine\n" in text
    assert "for this Python: pip install 'surestep[torch]'\npython=" in text
    assert subprocess.run(["bash", "-n", "job"]).returncode == 0


def test_gpu_options_are_accepted_on_a_machine_without_gpus(surestep, recipe):
    words = ["--slurm", recipe(), "--nproc", "4", "--gpus", "--device", "cuda"]
    answer = surestep("new", *words, "--parallel.sync_batchnorm", "True", "--data.pin_memory", "1")
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "type surestep new --slurm mine.py"),
        (["--slurm", "--nodes", "0"], "--nodes 0 is not allowed"),
        (["--slurm", "--nproc", "-1"], "--nproc -1 is not allowed"),
        (["--slurm", "--time", "soon"], "--time soon is not a time"),
        (["--slurm", "--out", "nowhere/job"], "nowhere/job cannot be written"),
        (["--slurm", "--out", "mine.py"], "mine.py already exists"),
        (["--slurm", "--batch-size", "many"], "batch_size='many'"),
        (["--slurm", *FSDP, "--nproc", "4", "--optim.name", "muon"], "optim.name='muon'"),
        (["--slurm", *FSDP, "--parallel.wrap_policy", "class Blok", "--nodes", "2"], "class Blok"),
        (["--slurm", "--nproc", "2", "--parallel.offload", "all"], "parallel.offload='all'"),
        (["--slurm", *FSDP], "requires several processes"),
    ],
)
def test_invalid_job_is_rejected_before_it_is_queued(surestep, recipe, folder, words, told):
    answer = surestep("new", recipe(), *words)
    assert (answer.code, told in answer.err) == (2, True), answer.err
    assert not list(folder.glob("*.sbatch"))
