import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import surestep
from surestep import Run
from surestep.base.errors import RunError
from surestep.base.text import format_bytes
from surestep.record.checkpoint.discovery import list_checkpoints, size_on_disk
from surestep.trainer.checkpointing import check_disk_space, estimate_checkpoint_bytes
from tests import tiny

WIDTH = 4000  # some 375 KB with AdamW


@pytest.fixture
def disk(tmp_path):
    """Mount a disk of the given size in KiB, if this process may."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size_kb):
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)]
        may = os.geteuid() == 0 and shutil.which("mount")
        if not (may and subprocess.run(words, capture_output=True).returncode == 0):
            if os.environ.get("CI") == "true":
                pytest.fail("this machine may not mount a tmpfs")
            pytest.skip("needs the right to mount a tmpfs")
        return folder / "run"

    yield mount
    subprocess.run(["umount", "-l", str(folder)], capture_output=True)


def wide():
    x, _ = tiny.data()
    model = nn.Sequential(nn.Linear(x.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
    return {"model": model}


def notices(folder):
    return [each["text"] for each in Run(folder).events() if each["event"] == "notice"]


def test_disk_without_space_for_one_checkpoint_starts_no_run(disk):
    folder = disk(200)
    with pytest.raises(RunError, match=r"about [\d.]+ KiB, and [\d.]+ KiB are free .* none could"):
        tiny.fit(folder, wide(), max_steps=4)
    assert not folder.exists()


def test_disk_without_space_for_all_checkpoints_is_reported_first(disk):
    folder = disk(2500)
    keep = {"keep_last": 9}
    with tiny.prepare(folder, wide(), max_steps=20, checkpoint=keep):
        assert any("THE DISK MAY FILL UP" in text for text in notices(folder))
        (told,) = [text for text in notices(folder) if "FILL UP" in text]
    assert "up to 10 checkpoints of about" in told
    assert "smaller checkpoint.keep_last" in told


def test_sufficient_disk_space_is_not_reported(disk):
    folder = disk(4000)
    tiny.fit(folder, wide(), max_steps=4)
    assert not any("FILL UP" in text for text in notices(folder))


def test_checkpoints_of_a_resumed_run_are_space_for_its_new_ones(tmp_path, monkeypatch):
    options = {"max_steps": 20, "checkpoint": {"every": "1 step", "keep_last": 3}}
    with tiny.prepare(tmp_path, **options) as session:
        for result in session.steps():
            session.save()
            if result.step == 3:
                break
    sizes = [size_on_disk(path) for path in list_checkpoints(session.run.checkpoints)]
    usage = SimpleNamespace(total=100 * sizes[-1], free=3 * sizes[-1] // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    for keep_last, is_reported in ((3, False), (4, True)):  # at most 4 at once, or 5; 4.5 fit
        options["checkpoint"]["keep_last"] = keep_last
        tiny.prepare(tmp_path, **options).close()
        assert any("FILL UP" in text for text in notices(tmp_path)) == is_reported
    assert f"has {format_bytes(usage.free + sum(sizes))} for them" in notices(tmp_path)[-1]


KEEP = {"keep_last": 2, "keep_best": 3}
VAL = {"val": tiny.data(4)}
CYCLES = {"name": "cosine_restarts", "cycles": 4, "save_cycles": True}


@pytest.mark.parametrize(
    ("parts", "options", "count"),
    [
        ({}, {}, 3),  # the last two, and the one that is being written
        (VAL, {}, 6),
        (VAL, {"on_spike": "rollback"}, 7),  # and the best before
        (VAL, {"on_spike": "rollback", "checkpoint": {**KEEP, "keep_best": 0}}, 3),
        ({}, {"schedule": CYCLES}, 7),
        ({}, {"checkpoint": {**KEEP, "keep_every": "10 steps"}}, 7),
        ({}, {"checkpoint": {**KEEP, "keep_every": "15 steps"}}, 5),
        ({}, {"checkpoint": {**KEEP, "mirror": "/somewhere"}}, 4),
        (VAL, {"max_steps": 2}, 2),
    ],
)
def test_space_is_needed_for_what_is_on_the_disk_at_once(
    tmp_path, monkeypatch, parts, options, count
):
    plan = tiny.plan(parts, **{"max_steps": 40, "checkpoint": KEEP, **options}).plan
    state = tiny.state_of(steps=0)
    size = estimate_checkpoint_bytes(plan, state)

    def check(free, total=100 * size):
        usage = SimpleNamespace(total=total, free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
        return check_disk_space(tmp_path, plan, state)

    assert check(count * size) is None
    for free in (count * size - 1, size):
        assert f"up to {count} checkpoints of about {format_bytes(size)} take" in check(free)
    for free in (size - 1, 0):
        with pytest.raises(RunError, match="none could be saved"):
            check(free)
    assert check(0, total=0) is None  # a file system that does not report its size


class Several(nn.Module):
    """Two layers of different sizes, a frozen one, and a buffer."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, WIDTH), nn.Linear(4, 3)
        self.a.fixed = nn.Linear(4, WIDTH).requires_grad_(False)
        self.register_buffer("table", torch.zeros(2 * WIDTH))


def take_step(manual_step):
    for name in ("a", "b"):
        for micro in manual_step.micro_batches(name):
            loss = manual_step.models[name](micro.args[0]).square().mean()
            manual_step.backward(loss, micro)
        manual_step.step(name)


@pytest.mark.parametrize("name", ["a", "b"])
def test_estimate_has_the_state_of_each_optimizer_and_the_buffers(tmp_path, name):
    """Only Adam has a state: in one of two optimizers."""
    optimizers = {each: surestep.Optim(name="sgd", lr=0.1) for each in ("a", "b")}
    optimizers[name] = surestep.Optim(name="adamw", lr=0.1)
    parts = {"step": take_step, "optimizers": optimizers, "model": Several()}
    task = surestep.Task(train=(tiny.data()[0],), **parts)
    with surestep.prepare(task, tiny.config(max_steps=1), run=tmp_path) as session:
        expected = estimate_checkpoint_bytes(session.plan, session.state)
        list(session.steps())
        written = size_on_disk(session.save())
    assert expected <= written <= expected * 1.02 + 8192


@pytest.mark.parametrize("optim", [{}, {"name": "sgd", "momentum": 0.9}, {"name": "sgd"}])
@pytest.mark.parametrize("average", [{}, {"kind": "ema"}])
def test_estimated_checkpoint_size_is_the_written_size(tmp_path, optim, average):
    said = {"optim": {"lr": 0.01, **optim}, "average": average, "max_steps": 2}
    with tiny.prepare(tmp_path, wide(), **said) as session:
        expected = estimate_checkpoint_bytes(session.plan, session.state)
        for _ in session.steps():
            pass
        written = size_on_disk(session.save())
    assert expected <= written <= expected * 1.02 + 8192
