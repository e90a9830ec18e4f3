import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

import surestep
from surestep.base.cache_folder import find_cache_folder
from surestep.engine.data import decoded_images
from surestep.recipes import images
from surestep.recipes.load import load

SMALL = {"width": 4, "files": 24, "size": 32}


@pytest.fixture(autouse=True)
def _few_files(tmp_path, monkeypatch):
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "cache"))
    few = {"train": range(12), "val": range(12, 18), "test": range(18, 24)}
    monkeypatch.setattr(images, "SPLITS", few)


def test_recipe_trains_on_its_files(tmp_path):
    recipe = load("images")
    config = recipe.config.replace_options({"epochs": 1, "logging.progress": "quiet"})
    task = recipe.build(SMALL, config)
    run = surestep.Trainer(task, config, run=tmp_path / "r").fit()
    assert run.status["status"] == "finished"


def test_files_are_made_once_and_always_the_same(tmp_path, monkeypatch):
    folder = images.make_files(6, 32)
    contents = read_files(folder)
    assert len(contents) == 6 + 6 + 6
    with monkeypatch.context() as patch:
        patch.setattr(images, "_make_split", None)
        assert images.make_files(6, 32) == folder
    monkeypatch.setenv("SURESTEP_CACHE_DIR", str(tmp_path / "other"))
    assert read_files(images.make_files(6, 32)) == contents


def read_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*.jpg")}


def test_files_are_complete_if_several_make_them_at_once():
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: images.make_files(8, 32), range(3)))
    (folder,) = folders
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert len(list(folder.glob("train/*.jpg"))) == 8


def test_interrupted_making_leaves_nothing(monkeypatch):
    make = images._make_split

    def stop_at_val(folder, *rest):
        if folder.name == "val":
            raise KeyboardInterrupt
        make(folder, *rest)

    monkeypatch.setattr(images, "_make_split", stop_at_val)
    with pytest.raises(KeyboardInterrupt):
        images.make_files(6, 32)
    assert not list(images.find_cache().iterdir())


def test_files_are_in_the_cache_folder_of_the_user(monkeypatch):
    assert images.find_cache() == find_cache_folder("images")
    monkeypatch.delenv("SURESTEP_CACHE_DIR")
    assert images.find_cache() == find_cache_folder("images")


def test_splits_share_no_digit(monkeypatch):
    monkeypatch.undo()
    found = [digit for split in images.SPLITS.values() for digit in split]
    assert sorted(found) == list(range(1797))


def test_digit_is_on_the_photo_in_a_color():
    ink = torch.zeros(8, 8)
    ink[:, 3:5] = 1
    photo = Image.new("RGB", (640, 427), (128, 128, 128))
    pixels = np.array(images.draw_digit(random.Random(0), photo, ink, 64)).astype(int)
    changed = np.abs(pixels - 128).max(axis=2) > 60
    assert 0.02 < changed.mean() < 0.35
    assert (np.abs(pixels - 128).max(axis=2) == 0).mean() > 0.4


def test_augmentation_is_random_and_evaluation_is_not():
    task = images.task(**SMALL)
    random.seed(0)
    assert not torch.equal(task.train[0][0], task.train[0][0])
    assert torch.equal(task.val[0][0], task.val[0][0])
    inputs, digit = task.train[0]
    assert (inputs.shape, inputs.dtype) == ((3, 32, 32), torch.float32)
    assert inputs.abs().max() <= 1
    assert 0 <= digit <= 9


def test_decoded_images_train_the_same_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(decoded_images, "_INEXACT_S", -1.0)  # the files have just been made
    found = []
    for data in ({}, {"data.keep_decoded": "2MB"}):
        recipe = load("images")
        config = recipe.config.replace_options(
            {"epochs": 2, "logging.progress": "quiet", "validation.every": None, **data}
        )
        task = recipe.build(SMALL, config)
        session = surestep.prepare(task, config, run=tmp_path / f"r{len(found)}")
        with session:
            for _ in session.steps():
                pass
        found.append(torch.cat([p.detach().flatten() for p in session.model.parameters()]))
    assert torch.equal(*found)
