import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from torch import nn

from surestep import Run
from surestep.base.errors import RunError
from surestep.base.text import format_bytes
from surestep.record.checkpoint.discovery import list_checkpoints, size_on_disk
from surestep.trainer.checkpointing import estimate_checkpoint_bytes
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
