"""A run that one release of torch begins and another continues."""

import sys
from pathlib import Path

import torch
from torch import nn

import surestep
from surestep.trainer.session import Session

STEPS = 4  # in an epoch


def prepare(run: Path) -> Session:
    """Open the run."""
    x = torch.linspace(-1, 1, 256).reshape(64, 4)
    task = surestep.Task(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2)),
        nn.CrossEntropyLoss(),
        train=(x, (x[:, 0] > 0).long()),
    )
    config = surestep.Config(
        epochs=9,
        batch_size=16,
        average=surestep.Average(kind="ema"),
        logging=surestep.Logging(progress="quiet"),
    )
    return surestep.prepare(task, config, run=run)


def continue_run(run: Path, end: int) -> int:
    """Train up to a step, save, and return the step at which the run was."""
    session = prepare(run)
    before = session.state.progress.step
    for result in session.steps():
        if result.step == end:
            session.save()
            break
    session.close()
    return before


if __name__ == "__main__":
    print(continue_run(Path(sys.argv[1]), int(sys.argv[2])))
