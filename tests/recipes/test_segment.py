import math

import pytest
import torch

import surestep
from surestep.recipes import segment
from surestep.recipes.load import load

SMALL = {"width": 8, "samples": 96, "size": 16, "noise": 0.05}


def test_segmentation_separates_digits_from_scraps(tmp_path):
    recipe = load("segment")
    options = {"epochs": 7, "batch_size": 16, "optim.lr": 0.01, "validation.every": "7 epochs"}
    config = recipe.config.replace_options({**options, "logging.progress": "quiet"})
    task = recipe.build(SMALL, config)
    surestep.Trainer(task, config, run=tmp_path / "r").fit()
    scenes, masks = task.val
    ink = scenes > 0.3
    with torch.no_grad():
        shares = task.model.eval()(scenes).sigmoid()
    digit, scrap = (shares[ink & (masks == which)].mean() for which in (1, 0))
    print(digit, scrap)
    assert digit > scrap + 0.2


def test_brightness_alone_does_not_find_the_mask():
    scenes, masks = load("segment").build({}, segment.config).val
    overlaps = [float(segment.dice(scenes - level / 10, masks)) for level in range(1, 10)]
    assert max(overlaps) < 0.7


def test_splits_share_no_images(monkeypatch):
    monkeypatch.setattr(segment, "scenes", lambda digits, *_: digits)
    task = segment.task()
    parts = [task.train, task.val, task.test]
    assert [len(part) for part in parts] == [1200, 300, 297]
    assert torch.equal(torch.cat(parts), segment.images()[0].squeeze(1))


def test_mask_covers_the_ink_of_digits_and_not_of_scraps():
    paper = torch.zeros(1, 8, 8)
    paper[0, :, :4] = 0.5  # a stroke; a scrap preserves only its amount of ink
    scenes, masks = segment.scenes(paper, 30, 40, noise=0.0)
    assert scenes.shape == masks.shape == (30, 1, 40, 40)
    assert set(masks.unique().tolist()) == {0, 1}
    assert not (masks > 0)[scenes == 0].any()
    inked, masked = (scenes > 0).flatten(1).sum(1), masks.flatten(1).sum(1)
    assert (masked <= 2 * 32).all()
    assert (inked <= 4 * 32).all()
    assert (inked > masked).all()
    assert torch.equal(segment.scenes(paper, 30, 40, noise=0.0)[0], scenes)


def test_dice_is_a_mean_over_scenes_and_iou_is_global():
    mask = torch.zeros(2, 1, 4, 4)
    mask[0, :, 0] = 1
    mask[1, :, :, :2] = 1
    logits = torch.full((2, 1, 4, 4), -1.0)
    logits[0, :, 0, :2] = 1  # 2 of 4
    logits[1] = 1  # 16 for 8
    assert float(segment.dice(logits, mask)) == pytest.approx((2 * 2 / 6 + 2 * 8 / 24) / 2)
    both, either = segment.iou(logits, mask)
    assert (int(both), int(either)) == (10, 20)


def test_initial_outputs_equal_the_share_of_ink():
    model = segment.UNet(4).eval()
    with torch.no_grad():
        model.head.weight.zero_()
        assert float(model(torch.zeros(1, 1, 8, 8)).sigmoid().mean()) == pytest.approx(0.08)
    assert math.isclose(float(segment.task(4).train[1].mean()), 0.08, abs_tol=0.01)
