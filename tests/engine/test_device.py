"""What "cuda" means while a run is open: the Plan's device, for torch and for the user alike."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import nn

from surestep.config.config import Config
from surestep.engine.device import use_device
from surestep.engine.distributed.launcher_env import LaunchInfo
from surestep.engine.model.precision import torch_settings
from surestep.recipes.load import load
from surestep.trainer import planning, prepare
from surestep.trainer.planning import plan_task
from tests import tiny

TWO = replace(
    tiny.TWO_GPUS,
    launched=LaunchInfo(rank=1, size=2, local_rank=1, local_size=2, launcher="torchrun"),
)


class Cards:
    """Two GPUs that are not there: which one is the current device, and when it was another."""

    def __init__(self, monkeypatch):
        self.now, self.was = 0, []
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "device", self.device)

    @contextmanager
    def device(self, device):
        before, self.now = self.now, device.index
        self.was.append(device.index)
        try:
            yield
        finally:
            self.now = before


@pytest.fixture
def cards(monkeypatch):
    return Cards(monkeypatch)


def test_a_device_with_a_number_is_the_current_one_meanwhile(cards):
    with use_device(torch.device("cuda", 1)):
        assert cards.now == 1
    assert cards.now == 0


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:7"])
def test_others_leave_the_current_device_as_it_is(cards, device):
    """cuda:7 is of another machine, which a plan may be made for."""
    with use_device(torch.device(device)):
        assert cards.now == 0
    assert cards.was == []


def test_the_settings_of_a_run_make_its_device_the_current_one(cards):
    plan = tiny.decide({"parallel.strategy": "ddp"}, TWO)
    with torch_settings(plan):
        assert cards.now == plan.device.index == 1
    assert cards.now == 0


def test_a_model_is_built_on_the_device_of_its_rank(cards):
    seen = []

    def build():
        seen.append(cards.now)
        return tiny.model()

    plan_task(tiny.task(model=build), tiny.config(), facts=TWO)
    assert seen == [1]
    assert cards.now == 0


def test_a_recipe_is_read_on_the_device_of_its_rank(cards, monkeypatch, tmp_path):
    source = tmp_path / "seen.py"
    source.write_text(
        "import torch, surestep\nfrom tests import tiny\n\n"
        "def task() -> surestep.Task:\n"
        "    with torch.cuda.device(torch.device('cuda', 0)):\n        pass\n"
        "    return tiny.task()\n"
    )
    monkeypatch.setattr("surestep.recipes.load.read_facts", lambda: TWO)
    load(str(source)).build({}, Config(epochs=1))
    assert cards.was == [1, 0]  # the recipe's own within ours
    assert cards.now == 0


def test_the_process_group_is_opened_on_the_device_of_the_rank(cards, monkeypatch, tmp_path):
    """NCCL and FSDP take the current device."""
    seen = []

    class OpenedHere(Exception):
        pass

    def open_world(*_, **__):
        seen.append(cards.now)
        raise OpenedHere

    monkeypatch.setattr(planning, "read_facts", lambda: TWO)
    monkeypatch.setattr(prepare, "join_process_group", open_world)
    with pytest.raises(OpenedHere):
        tiny.prepare(tmp_path, {"model": nn.Linear(tiny.FEATURES, tiny.CLASSES)})
    assert seen == [1]
    assert cards.now == 0
