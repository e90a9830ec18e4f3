import pytest
import torch
from sklearn.datasets import load_digits

import surestep
from surestep.recipes.load import load


def test_digits_reaches_its_accuracy(tmp_path):
    """One of the 297 test images is 0.3%; three seeds reach 98.0, 99.3 and 99.7%."""
    recipe = load("digits")
    config = recipe.config.replace_options({"logging.progress": "quiet", "seed": 1})
    trainer = surestep.Trainer(recipe.build({}, config), config, run=tmp_path)
    trainer.fit()
    assert trainer.evaluate("test")["test/accuracy"] >= 0.98


def test_splits_share_no_images():
    recipe = load("digits")
    task = recipe.build({"width": 2}, recipe.config)
    sizes = [len(part[0]) for part in (task.train, task.val, task.test)]
    assert sizes == [1200, 300, 297]
    x, y = recipe.module.images()
    assert torch.equal(torch.cat([part[0] for part in (task.train, task.val, task.test)]), x)
    assert torch.equal(torch.cat([part[1] for part in (task.train, task.val, task.test)]), y)


def test_pixels_are_in_range():
    x, y = load("digits").module.images()
    assert (x.shape, y.shape) == ((1797, 1, 8, 8), (1797,))
    assert (float(x.min()), float(x.max())) == (0, 1)
    assert sorted(set(y.tolist())) == list(range(10))


def test_images_equal_those_of_scikit_learn():
    bunch = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x, y = load("digits").module.images()
    assert torch.equal(x[:, 0], torch.tensor(bunch.images, dtype=torch.float32)[order] / 16)
    assert torch.equal(y, torch.tensor(bunch.target)[order])


@pytest.mark.parametrize("width", [2, 5])
def test_width_sets_the_first_convolution(width):
    recipe = load("digits")
    model = recipe.build({"width": width, "dropout": 0.0}, recipe.config).model
    assert model[0].out_channels == width
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
