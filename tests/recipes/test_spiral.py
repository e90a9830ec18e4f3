import pytest
import torch

import surestep
from surestep.recipes.load import load


def test_spiral_reaches_its_accuracy(tmp_path):
    recipe = load("spiral")
    config = recipe.config.replace_options({"logging.progress": "quiet"})
    trainer = surestep.Trainer(recipe.build({}, config), config, run=tmp_path / "r")
    trainer.fit()
    assert trainer.evaluate("test")["test/accuracy"] >= 0.97


def test_splits_share_no_points():
    recipe = load("spiral")
    task = recipe.build({"samples": 100}, recipe.config)
    parts = [part[0] for part in (task.train, task.val, task.test)]
    assert [len(part) for part in parts] == [70, 15, 15]
    assert torch.equal(torch.cat(parts), recipe.module.points(100, 0.15)[0])


@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_points_are_in_the_unit_circle(noise):
    x, arm = load("spiral").module.points(90, noise)
    assert x.norm(dim=1).max() <= 1
    assert arm.bincount().tolist() == [30, 30, 30]


def test_linear_model_cannot_separate_the_arms():
    x, arm = load("spiral").module.points(2000, 0.0)
    ones = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    weights = torch.linalg.lstsq(ones, torch.nn.functional.one_hot(arm).float()).solution
    assert ((ones @ weights).argmax(dim=1) == arm).float().mean() < 0.8
