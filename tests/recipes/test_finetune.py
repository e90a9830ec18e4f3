import pytest
import torch

import surestep
from surestep.recipes import finetune
from surestep.recipes.load import load

SMALL = {"width": 4, "pretrain_steps": 5}


@pytest.fixture
def session(tmp_path):
    recipe = load("finetune")
    options = {"validation.every": "60 epochs", "checkpoint.every": "60 epochs"}
    config = recipe.config.replace_options({**options, "logging.progress": "quiet"})
    with surestep.prepare(recipe.build(SMALL, config), config, run=tmp_path / "r") as opened:
        yield opened


def copies(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before, part):
    own = {name: value for name, value in model.state_dict().items() if name.startswith(part)}
    assert own
    return all(torch.equal(value, before[name]) for name, value in own.items())


def test_training_starts_from_pretrained_weights_with_a_new_head(session):
    start = finetune.pretrain(**{"width": 4, "steps": 5})
    assert same(session.model, start, "backbone.")
    assert not same(session.model, start, "head.")


def test_blocks_are_unfrozen_one_after_another_from_the_head_down(session):
    before = copies(session.model)
    thawed_at = {"head.": 0, "backbone.2.": 10, "backbone.1.": 20, "backbone.0.": 30}
    for result in session.steps():  # one step is an epoch
        for part, epoch in thawed_at.items():
            assert same(session.model, before, part) == (result.step <= epoch)
        if result.step == 32:
            break


def test_lower_blocks_have_smaller_learning_rates(session):
    for result in session.steps():
        if result.step == 35:
            break
    rates = {
        id(parameter): group["lr"]
        for optimizer in session.state.optimizers.values()
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    head, *blocks = [
        float(rates[id(module.weight)])
        for module in (session.model.head, *(b[0] for b in reversed(session.model.backbone)))
    ]
    assert blocks == pytest.approx([head * 0.7, head * 0.7**2, head * 0.7**3])


def test_train_split_is_small_and_splits_share_no_images():
    recipe = load("finetune")
    task = recipe.build({**SMALL, "per_digit": 3}, recipe.config)
    assert task.train[1].bincount().tolist() == [3, 3, 3, 3, 3]
    assert [len(part[0]) for part in (task.val, task.test)] == [200, 896 - 15 - 200]
    rows = torch.cat([part[0].flatten(1) for part in (task.train, task.val, task.test)])
    x, _ = finetune.images_of(5, 9)
    assert torch.equal(rows.unique(dim=0), x.flatten(1).unique(dim=0))


@pytest.mark.parametrize(("first", "last", "count"), [(0, 4, 901), (5, 9, 896)])
def test_classes_are_numbered_from_the_first_digit(first, last, count):
    x, y = finetune.images_of(first, last)
    assert (len(x), y.unique().tolist()) == (count, [0, 1, 2, 3, 4])


def test_zero_pretrain_steps_train_from_scratch():
    recipe = load("finetune")
    assert recipe.build({"width": 2, "pretrain_steps": 0}, recipe.config).init is None


def test_cached_pretraining_gives_the_same_weights(session, tmp_path):
    first = copies(session.model)
    session.close()
    finetune.pretrain.cache_clear()
    recipe = load("finetune")
    torch.rand(3)
    task = recipe.build(SMALL, recipe.config)
    with surestep.prepare(task, recipe.config, run=tmp_path / "again") as again:
        assert same(again.model, first, "")
