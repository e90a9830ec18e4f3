"""Windows of an arm that keeps decoded images are those of its second epoch."""

import gc
import sys
import time

import pytest

from surestep.engine.data import decoded_images
from surestep.engine.data.shared_store import SharedStore
from surestep.tuning.speed.arm import Arm, plan_recipe

Image = pytest.importorskip("PIL.Image")
BATCH, STEPS, DECODE_S = 2, 40, 0.01
IMAGE_BYTES = 8 * 8 * 3 + 24  # with its entry in the store
NOW = [0.0]

RECIPE = """
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import surestep


class Images(torch.utils.data.Dataset):
    paths = sorted(Path(__file__).parent.glob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return torch.from_numpy(np.array(Image.open(self.paths[index]))).float(), torch.ones(1)


config = surestep.Config(epochs=5, batch_size=2, device="cpu", optim={"name": "sgd", "lr": 1e-9})


def task():
    model = lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 1))
    return surestep.Task(model, loss="mse", train=Images())
"""


@pytest.fixture
def open_arm(tmp_path, monkeypatch):
    """Return a function that opens an arm with options; a file takes DECODE_S to decode."""
    for number in range(BATCH * STEPS):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number:02}.jpg")
    (tmp_path / "photos.py").write_text(RECIPE)
    get_decoder = Image._getdecoder

    def decode(mode, name, *args):
        NOW[0] += DECODE_S * (name == "jpeg")
        return get_decoder(mode, name, *args)

    monkeypatch.setattr(Image, "_getdecoder", decode)
    monkeypatch.setattr(time, "perf_counter", lambda: NOW[0])
    monkeypatch.setattr(decoded_images, "_stores", {})
    monkeypatch.setattr(decoded_images, "_INEXACT_S", -1.0)  # the files were written just now
    monkeypatch.setattr(sys, "path", list(sys.path))
    arms = []

    def make(**options):
        arms.append(Arm(plan_recipe(str(tmp_path / "photos.py"), options)))
        arms[-1].warm_up()
        return arms[-1]

    yield make
    for arm in arms:
        arm.close()
    gc.disable()  # as before the test
    sys.modules.pop("photos", None)


def take_windows(arm, count):
    """Return the time of each window of a step, in decoded images."""
    windows = [arm.take_compared_window(1, revisits=True) for _ in range(count)]
    return [round(window["seconds"] / DECODE_S) for window in windows]


def test_kept_images_are_decoded_once_and_an_epoch_of_that_is_known(open_arm):
    arm = open_arm(**{"data.keep_decoded": "1MB"})
    assert take_windows(arm, 10) == [0] * 10
    assert arm.first_epoch_s == pytest.approx(STEPS * BATCH * DECODE_S)
    visited = arm._loop.loader.source.decoded.store.used / IMAGE_BYTES / BATCH
    assert visited < STEPS / 2  # the others would take too long in a long epoch
    assert take_windows(open_arm(), 10) == [BATCH] * 10


def test_images_that_do_not_fit_are_decoded_in_the_windows(open_arm, monkeypatch):
    kept = BATCH * STEPS // 2
    small = SharedStore(kept * IMAGE_BYTES + 100)
    monkeypatch.setattr(decoded_images, "SharedStore", lambda size: small)
    arm = open_arm(**{"data.keep_decoded": "1MB"})
    with pytest.warns(UserWarning, match="40 images fill"):
        take_windows(arm, 1)
    began = NOW[0]
    take_windows(arm, STEPS // (arm.skipped + 1))  # an epoch
    assert NOW[0] - began == pytest.approx((BATCH * STEPS - kept) * DECODE_S, rel=0.1)
    assert arm.first_epoch_s == pytest.approx(kept * DECODE_S, rel=0.1)


def test_both_arms_read_the_same_samples_again(open_arm):
    def read(arm):
        arm.take_compared_window(1, revisits=True)
        return arm._loop.state.progress.position

    arms = open_arm(), open_arm(**{"data.keep_decoded": "1MB"})
    positions = [[read(arm) for _ in range(10)] for arm in arms]
    assert positions[0] == positions[1]
    assert max(positions[0]) < BATCH * STEPS / 2


def test_windows_go_through_all_epochs_if_no_images_are_kept(open_arm):
    arm = open_arm()
    for _ in range(STEPS):
        arm.take_compared_window(1, revisits=False)
    assert arm._loop.state.progress.epoch == 2
