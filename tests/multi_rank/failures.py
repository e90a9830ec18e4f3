"""Failures on one of two ranks: all cases at once, forked from one process.

`starter.py` calls `main`, which writes the output, exit code and duration of each rank of each case
to a folder.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import surestep
import surestep.trainer.trainer
from surestep.engine.distributed.hang_monitor import HangMonitor
from tests.multi_rank.cases import SAMPLES, data, net, task
from tests.multi_rank.forked import run_forked

TIMEOUT_S, START_TIMEOUT_S = 6.0, 12.0
OPTIONS: dict[str, Any] = {
    "max_steps": 8,
    "data": {"shuffle": False},
    "checkpoint": {"every": "2 steps"},
    "optim": {"lr": 1e-2},
}
BROKEN = 59
STEPPING = threading.Event()


def rank() -> int:
    return int(os.environ["RANK"])


class Sleepy(Dataset):
    """Sleeps for ever at a sample that one rank reads in a given step."""

    def __init__(self, at: int) -> None:
        self.x, self.y = data()
        self.at = at

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        if index == self.at and STEPPING.is_set():
            time.sleep(1000)
        return self.x[index], self.y[index]


class Begins(surestep.Callback):
    """Marks the start of training, so that earlier reads do not count."""

    def on_start(self, state):
        STEPPING.set()


class AtStep3(surestep.Callback):
    """Calls a function on one rank after step 3."""

    def __init__(self, act: Callable[[], None], on: int = 1) -> None:
        self.act, self.on = act, on

    def on_step(self, state, outcome):
        if rank() == self.on and outcome.step == 3:
            self.act()


def loop() -> None:
    while True:
        time.sleep(0.01)


class Reports:
    """Counts the reports of the position of this rank, and lets it make no more than two."""

    def __init__(self) -> None:
        self.count, publish = 0, HangMonitor.publish

        def count(monitor: HangMonitor) -> None:
            if self.count < 2:
                publish(monitor)
                self.count += 1

        HangMonitor.publish = count  # type: ignore[method-assign]


def stop() -> None:
    reports = Reports()
    while reports.count < 2:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGSTOP)


def kill() -> None:
    reports = Reports()
    while reports.count < 2:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ValueError("the metrics cannot be sent")


class WhileSaving(surestep.Callback):
    """Sends rank 1 a signal while it writes its shard of step 4 and continues training."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def on_start(self, state):
        def seen(event: str, about: tuple) -> None:
            if event == "open" and ".tmp-step-00000004" in str(about[0]):
                time.sleep(1)
                os.kill(os.getpid(), self.number)

        if rank() == 1:
            sys.addaudithook(seen)


class Pushes(surestep.Callback):
    """Changes a parameter on rank 1 after step 3."""

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


class Leaving(nn.Module):
    """Has a layer that is not used from a given step on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.left, self.leaves = net(), nn.Linear(3, 3), False

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.used(x)
        return outputs if self.leaves else self.left(outputs)


class Leaves(surestep.Callback):
    """Stops using the layer after step 3."""

    def on_step(self, state, outcome):
        state.model.leaves = outcome.step >= 3


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def of_rank() -> nn.Module:
    torch.manual_seed(rank())
    return net()


def broken() -> surestep.Task:
    """Make a task in which a sample of rank 1 is NaN in step 3."""
    x, y = data()
    x[BROKEN] = torch.nan
    return task((x, y))


SLEEPS_AT = {"asleep": 59, "asleep in step 1": 19, "asleep with BatchNorm": 49}  # the last: rank 0
MODELS: dict[str, Callable[[], nn.Module]] = {
    "asleep with BatchNorm": normed,
    "unused": Unused,
    "unused, allowed": Unused,
    "unused by DeepSpeed": Unused,
    "other weights": of_rank,
    "not static": Leaving,
}
WHILE_SAVING = {
    "killed while saving": signal.SIGKILL,
    "stopped while saving": signal.SIGSTOP,
}
SAID: dict[str, dict[str, Any]] = {
    "asleep in step 1": {"parallel": {"start_timeout_s": START_TIMEOUT_S}},
    "pushed": {"parallel": {"replica_check_every": "1 step"}, "logging": {"every": "1 step"}},
    "unused, allowed": {"parallel": {"find_unused_parameters": True}},
    "not static": {"parallel": {"static_graph": True}},
    "unused by DeepSpeed": {"parallel": {"strategy": "deepspeed"}},
    "not finite": {"parallel": {"strategy": "deepspeed"}},
    **{name: {"parallel": {"strategy": "fsdp"}} for name in WHILE_SAVING},
}
CALLBACKS: dict[str, Callable[[], surestep.Callback]] = {
    "pushed": Pushes,
    **dict.fromkeys(SLEEPS_AT, Begins),
    "not static": Leaves,
    "loops": lambda: AtStep3(loop),
    "stopped": lambda: AtStep3(stop),
    "first stopped": lambda: AtStep3(stop, on=0),
    "killed": lambda: AtStep3(kill),
    "fails": lambda: AtStep3(fail),
    "first fails": lambda: AtStep3(fail, on=0),
    **{name: partial(WhileSaving, number) for name, number in WHILE_SAVING.items()},
}
CASES = (  # those that take longest come first
    *SLEEPS_AT,
    *("loops", "stopped", "first stopped", *WHILE_SAVING),
    *("unused by DeepSpeed", "not finite", "not static"),
    *("nothing", "killed", "fails", "first fails", "pushed"),
    *("unused", "unused, allowed", "other weights", "other options"),
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
    if name == "asleep with BatchNorm":
        options["data"] = {**options["data"], "drop_last": True}  # the last batch has one sample
    samples = SAMPLES - (name == "other options" and rank() == 1)
    made = task(data(samples=samples), MODELS.get(name, net))
    if name == "not finite":
        made = broken()
    if name in SLEEPS_AT:
        made = surestep.Task(made.model, made.loss, train=Sleepy(SLEEPS_AT[name]))
    watchers = [CALLBACKS[name]()] if name in CALLBACKS else []
    config = surestep.Config(**options)
    surestep.Trainer(made, config, run=folder / name, callbacks=watchers).fit()


def main(folder: Path) -> None:
    run_forked(folder, {name: partial(train, folder, name) for name in CASES})
