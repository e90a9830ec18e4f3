import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, recall_score
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

import surestep
from surestep.recipes import imbalanced
from surestep.recipes.load import load


def built(**options):
    recipe = load("imbalanced")
    return recipe.build(options, recipe.config)


def trained(folder, epochs, **options):
    recipe = load("imbalanced")
    small = {"epochs": epochs, "optim.lr": 4e-3, "logging.progress": "quiet"}
    config = recipe.config.replace_options(small)
    task = recipe.build(options, config)
    trainer = surestep.Trainer(task, config, run=folder)
    trainer.fit()
    measured = trainer.evaluate("test")
    trainer.session.close()
    return measured


def test_balanced_weights_increase_the_recall_of_the_rare_class(tmp_path):
    with_weights = trained(tmp_path / "with", 6)
    without = trained(tmp_path / "without", 6, balanced=False)
    assert with_weights["test/recall"] > without["test/recall"] + 0.05
    assert with_weights["test/balanced_accuracy"] > without["test/balanced_accuracy"] + 0.01
    assert with_weights["test/balanced_accuracy"] > 0.9


def test_class_weights_come_from_the_training_tumours(tmp_path):
    recipe = load("imbalanced")
    task = recipe.build({}, recipe.config)
    weight = compute_class_weight("balanced", classes=np.arange(2), y=task.train[1].numpy())
    assert weight.tolist() == pytest.approx([234 / 428, 234 / 40])
    with surestep.prepare(task, recipe.config, run=tmp_path / "r") as session:
        measured = session.evaluate("test")
        x, y = task.test
        with torch.no_grad():
            logits = session.state.model.eval()(x)
    wanted = functional.cross_entropy(logits, y, torch.tensor(weight, dtype=torch.float32))
    assert measured["test/loss"] == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize("malignant", [20, 127])
def test_each_split_has_the_requested_class_counts(malignant):
    task = built(malignant=malignant)
    counts = [part[1].bincount().tolist() for part in (task.train, task.val, task.test)]
    assert counts == [[214, malignant], [71, 42], [72, 43]]


def test_splits_share_no_tumours():
    x, _ = imbalanced.tumours()
    task = built(malignant=127)
    rows = torch.cat([part[0] for part in (task.train, task.val, task.test)])
    whole = (x - x.mean(dim=0)) / x.std(dim=0)  # equal up to scale and offset per column
    rows = (rows - rows.mean(dim=0)) / rows.std(dim=0)
    for column in range(30):
        wanted, found = whole[:, column].sort().values, rows[:, column].sort().values
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


def test_tumours_are_standardised_by_the_training_split():
    x, _ = built().train
    torch.testing.assert_close(x.mean(dim=0), torch.zeros(30), atol=1e-4, rtol=0)
    torch.testing.assert_close(x.std(dim=0), torch.ones(30))


def test_malignant_tumours_are_class_1():
    x, y = imbalanced.tumours()
    assert y.bincount().tolist() == [357, 212]
    radius = x[:, 0]
    assert radius[y == 1].mean() > radius[y == 0].mean()  # malignant tumours are larger


@pytest.mark.parametrize("sizes", [[100], [60, 37, 3]])
def test_metrics_equal_scikit_learn_for_any_batch_sizes(sizes):
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(100, generator=generator) < 0.2).long()
    logits = torch.randn(100, 2, generator=generator) + functional.one_hot(targets)
    named = logits.argmax(dim=1)
    found = there = 0
    for each in zip(logits.split(sizes), targets.split(sizes), strict=True):
        more_found, more_there = imbalanced.recall(*each)
        found, there = found + more_found, there + more_there
    accuracy = float(imbalanced.balanced_accuracy(logits, targets))
    assert accuracy == pytest.approx(balanced_accuracy_score(targets, named))
    assert float(found / there) == pytest.approx(recall_score(targets, named))
    assert float(imbalanced.balanced_accuracy(functional.one_hot(targets), targets)) == 1
