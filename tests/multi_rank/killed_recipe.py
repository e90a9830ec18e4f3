"""A recipe whose processes kill themselves as DEATHS says for each attempt of the launcher.

DEATHS holds one word for each attempt: "1@5" kills rank 1 after step 5, "0+1@5" both, "save@6"
rank 0 before it renames the checkpoint of step 6, and "part@6" rank 1 while it writes its shard.
"SIGTERM@5" sends that signal to the launcher. "cut@5" makes rank 1 cut the link that LINK names.
SLOW_SAVES prolongs each save by that many seconds, so that it overlaps the next steps.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from torch import nn

import surestep
from surestep.engine.distributed import stop_signals
from tests.multi_rank.cases import accuracy, data

config = surestep.Config(
    max_steps=12,
    batch_size=20,
    optim={"lr": 1e-2},
    checkpoint={"every": "2 steps"},
    validation={"every": "4 steps"},
    logging={"progress": "quiet", "every": "3 steps"},
)


def task(dropout: float = 0.2) -> surestep.Task:
    """Tell three classes apart."""
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3))
    parts = {"train": data(), "val": data(), "metrics": {"accuracy": accuracy}}
    return surestep.Task(net, nn.CrossEntropyLoss(), **parts)


class Mortal(surestep.Callback):
    """Sends a signal after a step, on some ranks, to their process or to the launcher."""

    def __init__(self, who: str, step: int) -> None:
        self.to_launcher = who.startswith("SIG")
        self.signal = signal.Signals[who] if self.to_launcher else signal.SIGKILL
        self.ranks = {0} if self.to_launcher else set(map(int, who.split("+")))
        self.step = step

    def on_step(self, state, result):
        if result.step == self.step and int(os.environ["RANK"]) in self.ranks:
            os.kill(os.getppid() if self.to_launcher else os.getpid(), self.signal)
            while self.to_launcher and not has_received():  # until it has forwarded the signal
                time.sleep(0.01)


def has_received() -> bool:
    """Return whether a signal that stops the run has arrived."""
    return any(one.received for one in stop_signals._process.open)


class Cut(surestep.Callback):
    """Cuts the link to the other machine after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state, result):
        if result.step == self.step and os.environ["RANK"] == "1":
            subprocess.run(["ip", "link", "set", os.environ["LINK"], "down"], check=True)


def watch_saves(deadly: str, part: str = "") -> None:
    """Prolong each save; kill this process when one is published, or its shard half written.

    Args:
        deadly: the name of the checkpoint.
        part: the checkpoint of which the weights are written, but not the optimizer state.
    """
    slow_s = float(os.environ["SLOW_SAVES"])
    dying = re.compile(rf".*-{part}-.*/optimizer\.rank-00001\.safetensors")

    def seen(event: str, about: tuple) -> None:
        if event == "open" and part and dying.fullmatch(str(about[0])):
            time.sleep(slow_s)
            os.kill(os.getpid(), signal.SIGKILL)
        if event == "os.rename" and (name := Path(str(about[1])).name).startswith("step-"):
            time.sleep(slow_s)
            if name == deadly:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(seen)


def doom() -> list[surestep.Callback]:
    """Return the callbacks that DEATHS requires for this attempt."""
    deaths = os.environ["DEATHS"].split()
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    who, _, step = deaths[attempt].partition("@") if attempt < len(deaths) else ("", "", "0")
    name = f"step-{step:0>8}"
    watch_saves(name if who == "save" else "", name if who == "part" else "")
    if who in ("", "save", "part"):
        return []
    return [Cut(int(step)) if who == "cut" else Mortal(who, int(step))]


callbacks = doom() if "DEATHS" in os.environ else []
