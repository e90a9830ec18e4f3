import pytest
import torch
from sklearn.metrics import r2_score
from torch.nn import functional

import surestep
from surestep.recipes import tabular
from surestep.recipes.load import load

TRAIN = slice(0, 266)


def built(**options):
    recipe = load("tabular")
    return recipe.build(options, recipe.config)


def test_model_predicts_better_than_the_mean(tmp_path):
    recipe = load("tabular")
    small = {"epochs": 15, "validation.every": "15 epochs", "logging.progress": "quiet"}
    config = recipe.config.replace_options(small)
    trainer = surestep.Trainer(recipe.build({}, config), config, run=tmp_path / "r")
    trainer.fit()
    measured = trainer.evaluate("test")
    assert measured["test/r2"] > 0.4
    assert measured["test/mae"] < 55
    trainer.session.close()


def test_splits_share_no_patients():
    task = built()
    assert [len(part[0]) for part in (task.train, task.val, task.test)] == [266, 88, 88]
    whole = torch.cat([part[1] for part in (task.train, task.val, task.test)])
    _, y = tabular.patients()
    torch.testing.assert_close(whole * y[TRAIN].std() + y[TRAIN].mean(), y)


def test_patients_are_standardised_by_the_training_split(monkeypatch):
    before = built()
    for values in before.train:
        torch.testing.assert_close(
            values.mean(dim=0), torch.zeros(values.shape[1]), atol=1e-4, rtol=0
        )
        torch.testing.assert_close(values.std(dim=0), torch.ones(values.shape[1]))
    x, y = tabular.patients()
    x[266:], y[266:] = 7 * x[266:], 7 * y[266:]
    monkeypatch.setattr(tabular, "patients", lambda: (x, y))
    after = built()
    assert torch.equal(after.train[0], before.train[0])
    assert torch.equal(after.train[1], before.train[1])
    assert not torch.equal(after.test[0], before.test[0])


def test_mean_absolute_error_is_in_units_of_the_target():
    task = built()
    _, y = tabular.patients()
    _, targets = task.test
    predicted = torch.full_like(targets, 0.5)  # half a standard deviation above the mean
    wanted = (y[TRAIN].mean() + y[TRAIN].std() / 2 - y[354:]).abs().mean()
    torch.testing.assert_close(task.metrics["mae"](predicted, targets), wanted)


def test_r2_equals_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(2, 88, 1, generator=generator)
    assert float(tabular.r2(outputs, targets)) == pytest.approx(
        r2_score(targets, outputs), rel=1e-5
    )
    assert float(tabular.r2(targets, targets)) == 1


@pytest.mark.parametrize("delta", [0.5, 1.0])
def test_loss_is_linear_in_large_errors(delta):
    outputs, targets = torch.tensor([[0.0], [0.2]]), torch.tensor([[9.0], [0.0]])
    loss = built(delta=delta).loss(outputs, targets)
    assert float(loss) == pytest.approx((delta * (9 - delta / 2) + 0.02) / 2)
    torch.testing.assert_close(loss, functional.huber_loss(outputs, targets, delta=delta))
