"""Law 2 with images that stay decoded: the same run, also with workers, resumed, and in spawn."""

import random
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import surestep
from surestep.engine.data import decoded_images
from surestep.engine.data.decoded_images import DecodedImages
from surestep.engine.data.shared_store import SharedStore
from surestep.engine.data.sources import MapStyleSource
from tests.laws.support.tasks import Augmented, assert_same, session_of, snapshot, train

KEPT = {"keep_decoded": "2MB"}


class Photos(Dataset):
    """Files that Pillow decodes, and a random part of each."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 12

    def __getitem__(self, index):
        with Image.open(self.folder / f"{index}.{'jpg' if index % 2 else 'png'}") as file:
            image = file.convert("RGB")
        left, top = random.randrange(8), random.randrange(8)
        image = image.crop((left, top, left + 8, top + 8))
        image.putpixel((0, 0), (index, 0, 0))
        return torch.from_numpy(np.array(image)).float().flatten() / 255, index % 3


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.setattr(decoded_images, "_INEXACT_S", -1.0)
    monkeypatch.setattr(decoded_images, "_stores", {})
    generator = np.random.default_rng(0)
    for index in range(12):
        values = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(values).save(tmp_path / f"{index}.{'jpg' if index % 2 else 'png'}")
    return Photos(tmp_path)


def task_of(photos, **parts):
    torch.manual_seed(0)
    usual = {"model": nn.Linear(192, 3), "train": photos, "val": photos}
    return surestep.Task(**{**usual, **parts}, loss=nn.CrossEntropyLoss())


def run_all(photos, folder, *, data=None, **parts):
    options = {"batch_size": 4, "epochs": 3, "data": data or {}}
    return snapshot(train(task_of(photos, **parts), folder, **options))


@pytest.mark.parametrize("workers", [0, 2])
def test_decoded_images_train_bitwise_the_same(photos, folder, workers):
    plain = run_all(photos, folder())
    assert_same(plain, run_all(photos, folder(), data={**KEPT, "num_workers": workers}))


@pytest.mark.slow("spawns a worker, which imports torch")
def test_spawned_worker_shares_decoded_images(photos):
    time.sleep(2)  # the worker does not keep files that have just changed
    kept = DecodedImages(2_000_000)
    options = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}
    plain = MapStyleSource(photos, seed=0, collate=None, options={})
    source = MapStyleSource(photos, seed=0, collate=None, options=options, decoded=kept)
    for epoch in range(2):
        found = [list(one.read(epoch, None, [range(12)])) for one in (plain, source)]
        assert all(map(torch.equal, *(one[0] for one in found)))
    source.close()
    assert len(kept.store) == 12


@pytest.mark.parametrize("second", [{}, KEPT])
def test_run_resumes_with_decoded_images_and_without(photos, folder, second):
    first = KEPT if not second else {}
    expected, run = run_all(photos, folder()), folder()
    options = {"batch_size": 4, "epochs": 3}
    with session_of(task_of(photos), run, data=first, **options) as session:
        for result in session.steps():
            if result.step == 4:
                session.save()
                break
    resumed = snapshot(train(task_of(photos), run, data=second, **options))
    assert_same(expected, resumed)


@pytest.mark.parametrize("size", ["2MB", "1MB"])
def test_run_says_what_it_does_not_keep(photos, folder, size, monkeypatch):
    """Nothing is kept of a dataset without files, and not everything in too little memory."""
    if size == "2MB":
        photos, text = Augmented(12), "keeps nothing of the train data"
    else:
        monkeypatch.setattr(decoded_images, "SharedStore", lambda size: SharedStore(3000))
        text = "3 images fill 2.9 KiB"
    model = nn.Linear(10 if size == "2MB" else 192, 3)
    with pytest.warns(UserWarning, match=text) as caught:
        run_all(photos, folder(), data={"keep_decoded": size}, model=model, val=photos)
    assert len([one for one in caught if "keep_decoded" in str(one.message)]) == 1
