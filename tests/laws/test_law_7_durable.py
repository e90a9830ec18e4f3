"""Law 7: a corrupt checkpoint is never loaded; it is reported, and the newest good one is used.

The run that resumes from an older checkpoint ends bitwise identical to an uninterrupted run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

import surestep
from surestep.record.checkpoint.discovery import list_checkpoints
from tests.laws.support.tasks import (
    Augmented,
    assert_moved,
    assert_same,
    session_of,
    snapshot,
    train,
)
from tests.laws.support.tasks import with_batchnorm as net

Folder = Callable[[], Path]
OPTIONS = {
    **{"max_steps": 8, "batch_size": 9, "checkpoint": {"keep_last": 3}},
    "average": {"kind": "ema"},
}
FILES = (
    *("manifest.json", "state.json", "model.safetensors", "optimizer.safetensors"),
    "average.safetensors",
)


def _flip(file: Path, at: float) -> None:
    data = bytearray(file.read_bytes())
    data[int(at * (len(data) - 1))] ^= 16
    file.write_bytes(data)


def _half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "half": _half,
    "a bit at its begin": lambda file: _flip(file, 0.0),
    "a bit in its middle": lambda file: _flip(file, 0.5),
    "a bit at its end": lambda file: _flip(file, 1.0),
}


def task() -> surestep.Task:
    return surestep.Task(net(), nn.CrossEntropyLoss(), Augmented())


def check_damage(folder: Folder, file: str = "model.safetensors", damage: str = "half") -> None:
    """Stop at step 6, corrupt its checkpoint, and resume from step 4 to the same end."""
    whole, run = snapshot(train(task(), folder(), **OPTIONS)), folder()
    with session_of(task(), run, **OPTIONS) as session:
        for result in session.steps():
            if result.step in (2, 4, 6):
                session.save()
            if result.step == 4:
                half = snapshot(session)
            if result.step == 6:
                break
    DAMAGES[damage](list_checkpoints(run / "checkpoints")[-1] / file)
    with session_of(task(), run, **OPTIONS) as session:
        assert session.state.progress.step == 4
        assert_same(snapshot(session), half)
        for _ in session.steps():
            pass
        again = snapshot(session)
    assert_same(again, whole)
    assert_moved(again, half)
    fallbacks = [event for event in surestep.Run(run).events() if event["event"] == "fallback"]
    assert [(event["step"], file in event["reason"]) for event in fallbacks] == [(4, True)]


@pytest.mark.parametrize("file", FILES)
def test_flipped_bit_costs_only_the_steps_since_the_previous_checkpoint(folder, file):
    check_damage(folder, file, "a bit in its middle")


@pytest.mark.parametrize("damage", DAMAGES)
def test_corrupt_file_costs_only_the_steps_since_the_previous_checkpoint(folder, damage):
    check_damage(folder, "model.safetensors", damage)
