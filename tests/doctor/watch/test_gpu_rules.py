"""What the rules about a GPU decide, without one."""

import pytest
import torch
from torch import nn

from surestep.doctor.rules import (
    ss702_sync_every_step,
    ss708_slow_optimizer,
    ss709_matmul_precision,
)
from surestep.doctor.watch.hooks import Monitor


def train(steps, read):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        loss.model = model
        read(step, loss)


def observe_reads(monkeypatch, steps, read):
    """Return what the rule says of a script, as if its tensors were on a GPU."""
    monkeypatch.setattr(ss702_sync_every_step, "has_device", lambda: True)
    monkeypatch.setattr(ss702_sync_every_step, "is_on_device", lambda value: True)
    watcher = ss702_sync_every_step.SyncEveryStepWatcher()
    monitor = Monitor({"SS702": watcher})
    with monitor.installed():
        train(steps, read)
    assert monitor.listeners.failures == {}
    return list(watcher.observe(monitor.run))


def test_value_that_is_read_in_each_step_is_found(monkeypatch):
    (found,) = observe_reads(monkeypatch, 30, lambda step, loss: loss.item())
    assert found.evidence == {"steps": 30, "reads": 30}
    assert found.location.file == __file__


@pytest.mark.parametrize(
    "read",
    [
        lambda step, loss: step % 10 == 0 and loss.item(),
        lambda step, loss: torch.isfinite(loss).item(),
    ],
    ids=["now and then", "to stop"],
)
def test_values_that_are_read_rarely_or_for_a_reason_are_not_found(monkeypatch, read):
    assert observe_reads(monkeypatch, 30, read) == []


def test_read_by_a_library_is_not_found(monkeypatch):
    scaler = torch.amp.GradScaler("cpu")

    scaler.scale(torch.ones(()))

    def read(step, loss):
        scaler.get_scale()  # calls item()

    assert observe_reads(monkeypatch, 30, read) == []


def test_read_by_a_library_in_a_folder_that_is_named_surestep_is_not_found(monkeypatch, tmp_path):
    code = compile(
        "def read(step, loss): loss.item()", str(tmp_path / "surestep-try/lib.py"), "exec"
    )
    names = {}
    exec(code, names)
    mine = ss702_sync_every_step.is_user_file
    monkeypatch.setattr(
        ss702_sync_every_step, "is_user_file", lambda file: "lib.py" not in file and mine(file)
    )
    assert observe_reads(monkeypatch, 30, names["read"]) == []


def test_loop_that_evaluates_after_every_step_is_not_found(monkeypatch):
    def evaluate(step, loss):
        loss.model.eval()
        loss.item()

    def freeze_a_part(step, loss):
        loss.model[0].eval()
        loss.item()

    assert observe_reads(monkeypatch, 30, evaluate) == []
    assert len(observe_reads(monkeypatch, 30, freeze_a_part)) == 1


def test_script_that_measures_time_is_not_found(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def read(step, loss):
        loss.item()
        if step == 29:
            torch.cuda.synchronize()

    assert observe_reads(monkeypatch, 30, read) == []


@pytest.mark.parametrize("steps", [9, 10])
def test_value_that_is_read_in_each_of_ten_steps_is_found(monkeypatch, steps):
    found = observe_reads(monkeypatch, steps, lambda step, loss: loss.item())
    assert len(found) == (steps == 10)


def test_value_on_the_cpu_costs_nothing():
    assert not ss702_sync_every_step.is_on_device(torch.ones(()))
    assert not ss702_sync_every_step.is_on_device(1.0)


@pytest.mark.parametrize(
    ("group", "on_gpu", "expected"),
    [
        ({"foreach": False, "fused": None}, 100, True),
        ({"foreach": False}, 100, True),
        ({"foreach": None, "fused": None}, 100, False),
        ({"foreach": False, "fused": True}, 100, False),
        ({"foreach": False, "capturable": True}, 100, False),
        ({"foreach": False}, 2, False),
        ({"foreach": False}, 0, False),
    ],
)
def test_optimizer_is_slow_if_both_fast_implementations_are_off(group, on_gpu, expected):
    assert ss708_slow_optimizer.is_slow(group, on_gpu) is expected


@pytest.mark.parametrize(
    ("capability", "precision", "shape", "expected"),
    [
        (9, "highest", (512, 2048), True),
        (9, "high", (512, 2048), False),
        (7, "highest", (512, 2048), False),
        (9, "highest", (10, 2048), False),
    ],
)
def test_products_are_slow_on_newer_gpus_only(capability, precision, shape, expected):
    assert ss709_matmul_precision.is_slow(capability, precision, shape) is expected
