"""Law 2: a run resumed from its mirror on an empty machine equals an uninterrupted run, bitwise."""

import shutil
from pathlib import Path

import pytest
from torch import nn

import surestep
from tests.laws.support.tasks import (
    Augmented,
    assert_moved,
    assert_same,
    session_of,
    snapshot,
    train,
    with_batchnorm,
)

OPTIONS = {"max_steps": 14, "batch_size": 9, "micro_batch_size": 5, "schedule": {"name": "cosine"}}


def task_of() -> surestep.Task:
    return surestep.Task(with_batchnorm(), nn.CrossEntropyLoss(), Augmented())


@pytest.mark.parametrize("kind", ["none", "ema"])
@pytest.mark.parametrize("stop_at", [1, 7, 12])
def test_run_resumed_from_its_mirror_equals_an_uninterrupted_run(
    folder, tmp_path, monkeypatch, stop_at, kind
):
    monkeypatch.chdir(tmp_path)
    options = {**OPTIONS, "average": {"kind": kind}}
    whole = train(task_of(), folder(), **options)
    address = f"file://{tmp_path}/mirror"
    with session_of(task_of(), address, **options) as session:
        for result in session.steps():
            if result.step == stop_at:
                session.save()
                half = snapshot(session)
                break
    shutil.rmtree("runs")
    with session_of(task_of(), address, **options) as session:
        assert_same(half, snapshot(session))
        assert [result.step for result in session.steps()] == list(range(stop_at + 1, 15))
    assert_same(snapshot(whole), snapshot(session))
    assert_moved(half, snapshot(session))
    assert whole.state.progress == session.state.progress
    assert Path("runs").is_dir()


def test_run_with_a_mirror_equals_one_without(folder, tmp_path):
    plain = train(task_of(), folder(), **OPTIONS)
    checkpoint = {"every": "2 steps", "mirror": str(tmp_path / "mirror")}
    mirrored = train(task_of(), folder(), **OPTIONS, checkpoint=checkpoint)
    assert_same(snapshot(plain), snapshot(mirrored))
