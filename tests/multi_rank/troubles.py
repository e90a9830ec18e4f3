"""What goes wrong on one of two ranks: all cases at once, forked from one process that is warm.

    python -m tests.multi_rank.troubles FOLDER [CASE ...]

leaves in the folder for each case what each rank wrote, its exit code and its seconds.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import surestep
import surestep.trainer.trainer
from tests.multi_rank.cases import SAMPLES, data, net, task

TIMEOUT_S = 6.0
OPTIONS: dict[str, Any] = {
    "max_steps": 8,
    "data": {"shuffle": False},
    "checkpoint": {"every": "2 steps"},
    "optim": {"lr": 1e-2},
}
BROKEN = 59
LIMIT_S, AT_ONCE = 60, 5


def rank() -> int:
    return int(os.environ["RANK"])


class Sleepy(Dataset):
    """Sleeps for ever at a sample that the second rank reads in step 3."""

    def __init__(self) -> None:
        self.x, self.y = data()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        if index == 59:
            time.sleep(1000)
        return self.x[index], self.y[index]


class AtStep3(surestep.Callback):
    """Does something on one rank after step 3."""

    def __init__(self, act: Callable[[], None], on: int = 1) -> None:
        self.act, self.on = act, on

    def on_step(self, state, outcome):
        if rank() == self.on and outcome.step == 3:
            self.act()


def loop() -> None:
    while True:
        time.sleep(0.01)


def stop() -> None:
    time.sleep(1)  # in which the rank has said where it stands
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("the metrics cannot be sent")


class Pushes(surestep.Callback):
    """Changes a parameter on the second rank after step 3."""

    def on_step(self, state, outcome):
        if rank() == 1 and outcome.step == 3:
            with torch.no_grad():
                state.model[2].bias[0] += 1e-3


class Unused(nn.Module):
    """Has a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = net(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def of_rank() -> nn.Module:
    torch.manual_seed(rank())
    return net()


def broken() -> surestep.Task:
    """A sample of the second rank is NaN in step 3."""
    x, y = data()
    x[BROKEN] = torch.nan
    return task((x, y))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "unused": Unused,
    "unused, allowed": Unused,
    "unused by DeepSpeed": Unused,
    "other weights": of_rank,
}
SAID: dict[str, dict[str, Any]] = {
    "pushed": {"parallel": {"check_every": "1 step"}, "logging": {"every": "1 step"}},
    "unused, allowed": {"parallel": {"find_unused_parameters": True}},
    "unused by DeepSpeed": {"parallel": {"kind": "deepspeed"}},
    "not finite": {"parallel": {"kind": "fsdp"}},
}
CALLBACKS: dict[str, Callable[[], surestep.Callback]] = {
    "pushed": Pushes,
    "loops": lambda: AtStep3(loop),
    "stopped": lambda: AtStep3(stop),
    "first stopped": lambda: AtStep3(stop, on=0),
    "killed": lambda: AtStep3(kill),
    "fails": lambda: AtStep3(fail),
    "first fails": lambda: AtStep3(fail, on=0),
}
CASES = (
    *("nothing", "killed", "fails", "first fails", "pushed"),
    *("unused", "unused, allowed", "other weights", "other options"),
    *("unused by DeepSpeed", "not finite"),
    *("asleep", "loops", "stopped", "first stopped"),
)


def train(folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    said = SAID.get(name, {})
    options = OPTIONS | {
        "batch_size": 20,
        "logging": {"progress": "quiet", **said.get("logging", {})},
        "parallel": {"timeout_s": TIMEOUT_S, **said.get("parallel", {})},
    }
    if name == "other options" and rank() == 1:
        options["optim"] = {"lr": 1e-3}
    samples = SAMPLES - (name == "other options" and rank() == 1)
    made = task(data(samples=samples), MODELS.get(name, net))
    if name == "not finite":
        made = broken()
    if name == "asleep":
        made = surestep.Task(made.model, made.loss, train=Sleepy())
    watchers = [CALLBACKS[name]()] if name in CALLBACKS else []
    config = surestep.Config(**options)
    surestep.Trainer(made, config, run=folder / name, callbacks=watchers).fit()


def be_rank(number: int, port: int, folder: Path, name: str) -> None:
    """Run a case as one rank, and end this process."""
    size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    of_rank = {"RANK": str(number), "LOCAL_RANK": str(number), "MASTER_PORT": str(port)}
    os.environ.update(size | of_rank)
    said = os.open(folder / f"{name}-{number}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    code = 0
    try:
        train(folder, name)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 1
    sys.stderr.flush()
    os._exit(code)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main(folder: Path, names: list[str]) -> None:
    codes: dict[str, Any] = {}
    for start in range(0, len(names), AT_ONCE):
        run(folder, names[start : start + AT_ONCE], codes)
    (folder / "codes.json").write_text(json.dumps(codes))


def run(folder: Path, names: list[str], codes: dict[str, Any]) -> None:
    """Run cases at once, and note how each rank ended."""
    running, begun = {}, time.monotonic()
    for name in names:
        port = free_port()
        for number in (0, 1):
            pid = os.fork()
            if pid == 0:
                be_rank(number, port, folder, name)
            running[pid] = name, number
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        seconds = time.monotonic() - begun
        if pid:
            name, number = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            codes[f"{name}-{number}"] = {"code": code, "seconds": seconds}
        else:
            time.sleep(0.02)
        for each, (name, number) in running.items():
            left_alone = (name, 1 - number) not in running.values()
            if seconds > LIMIT_S or (left_alone and "stopped" in name):
                os.kill(each, signal.SIGKILL)  # as a launcher does


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(CASES))
