"""Ctrl-C and workers, in child processes."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from surestep.record.run import Run
from tests.cli.conftest import HEAD, RECIPE, environment
from tests.warm import warm_python

SPAWNING = f"""{HEAD}
from torch.utils.data import DataLoader, Dataset

config = surestep.Config(epochs=1)

class Samples(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return x[index], y[index]

class Net(nn.Linear):
    pass

def task():
    loader = DataLoader(Samples(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    return surestep.Task(model=Net(4, 3), loss=nn.CrossEntropyLoss(), train=loader)

print("read", __name__)
"""
# Interrupts itself in its fourth step, as a terminal would.
INTERRUPTED = (
    RECIPE
    + """
import os, signal
class Impatient(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 4 and "IMPATIENT" in os.environ:
            os.kill(os.getpid(), signal.SIGINT)

callbacks = [Impatient()]
"""
)


def run(words, **more):
    return subprocess.run(
        [warm_python(), "-m", "surestep", *words],
        capture_output=True,
        text=True,
        timeout=300,  # guards against hanging; generous for a busy machine
        env={**environment(), **more},
    )


def test_ctrl_c_exits_with_130_and_the_same_command_resumes(surestep, recipe, folder):
    words = ("train", recipe(INTERRUPTED), "--run", "r")
    stopped = run(words, IMPATIENT="1")
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert "Traceback" not in stopped.stderr
    assert "Stopped after step 4; saved as r/checkpoints/step-00000004." in stopped.stderr
    status = Run(folder / "r").status
    assert (status["status"], status["reason"], status["step"]) == ("stopped", "Ctrl-C", 4)
    assert surestep("evaluate", "r").code == 0
    went_on = surestep(*words)
    assert went_on.code == 0
    assert "Resuming r from step 4" in went_on.err
    status = Run(folder / "r").status
    speed = f"{status['items_per_s']:,.0f} items/s"
    assert re.search(rf" steps 6, since step 4 in \d\S* m?s, {speed} ", went_on.out)
    assert surestep("train", "mine.py", "--run", "whole").code == 0
    assert Run(folder / "r").last.metrics == Run(folder / "whole").last.metrics


def test_stopped_run_shows_the_command_to_resume(surestep, recipe, folder):
    text = INTERRUPTED.replace("os.kill(os.getpid(), signal.SIGINT)", "signal.raise_signal(2)")
    text = text.replace(' and "IMPATIENT" in os.environ', "")
    before = signal.getsignal(signal.SIGINT)
    answer = surestep("train", recipe(text))
    assert answer.code == 130
    (run,) = (folder / "runs").iterdir()
    assert f"surestep train mine.py --run runs/{run.name}" in answer.err
    assert signal.getsignal(signal.SIGINT) is before


def test_spawned_workers_find_the_classes_of_a_recipe(recipe, folder):
    done = run(("train", recipe(SPAWNING), "--run", "r"))
    assert (done.returncode, Run(folder / "r").status["step"]) == (0, 2), done.stderr
    assert done.stdout.count("read mine\n") >= 2  # here, and in each worker
    assert "Warning" not in done.stderr


@pytest.mark.slow("spawns workers, which import torch")
def test_spawned_workers_find_the_classes_of_a_module_of_a_package(recipe, folder):
    (folder / "my/pkg").mkdir(parents=True)
    for name in ("my/__init__.py", "my/pkg/__init__.py"):
        recipe("", name)
    recipe(SPAWNING, "my/pkg/queue.py")
    done = run(("train", "my.pkg.queue", "--run", "r"))
    assert (done.returncode, Run(folder / "r").status["step"]) == (0, 2), done.stderr
    assert done.stdout.count("read my.pkg.queue\n") >= 2  # here, and in each worker


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGHUP"])
def test_signal_exits_with_75_and_shows_the_command_to_resume(surestep, recipe, folder, name):
    text = INTERRUPTED.replace("signal.SIGINT", f"signal.{name}")
    text = text.replace(' and "IMPATIENT" in os.environ', "")
    answer = surestep("train", recipe(text), "--run", "r")
    assert (answer.code, answer.out) == (75, "")
    assert "Resume with: surestep train mine.py --run r" in answer.err
    assert answer.err.count("Stopped after step 4; saved as") == 1
    assert Run(folder / "r").status["resumable"] is True
    assert Run(folder / "r").last.step == 4


# Loads in workers, writes down their process ids, and reports when its fourth step is done.
IN_TERMINAL = (
    RECIPE
    + """
import os, time
from torch.utils.data import Dataset

class Samples(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        open(f"worker-{os.getpid()}", "w").close()
        return x[index % 8], y[index % 8]

class Announces(surestep.Callback):
    def on_step(self, state, result):
        if result.step == 4:
            open("reached", "w").close()
        time.sleep(0.05)

def task():
    return surestep.Task(model=nn.Linear(4, 3), loss=nn.CrossEntropyLoss(), train=Samples())

config = surestep.Config(epochs=9, batch_size=4, data={"num_workers": 2})
callbacks = [Announces()]
"""
)


def test_closed_terminal_saves_the_run_and_ends_its_workers(recipe, folder):
    command = [sys.executable, "-m", "surestep", "train", recipe(IN_TERMINAL), "--run", "r"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(command[0], command, environment())
    end = time.monotonic() + 120
    while not (folder / "reached").exists() and time.monotonic() < end:
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 65536)
    os.close(terminal)  # the kernel sends SIGHUP to all of its processes
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 75
    status = Run(folder / "r").status
    assert (status["status"], status["reason"], status["resumable"]) == ("stopped", "SIGHUP", True)
    assert Run(folder / "r").last.step == status["step"] >= 4
    workers = [int(each.name.removeprefix("worker-")) for each in folder.glob("worker-*")]
    assert len(workers) >= 2
    assert not [each for each in workers if os.path.exists(f"/proc/{each}")]
