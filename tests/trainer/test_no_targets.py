"""Data without targets: predicted as by plain PyTorch, and not evaluated."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import surestep
from surestep.base.errors import NoTargetsError
from surestep.trainer.dry_run import dry_run
from surestep.trainer.evaluator import evaluate_run, predict_run
from tests import tiny

X, Y = tiny.data()


class Named(nn.Module):
    """A model whose input has a name, and that is called with anything else nowhere."""

    def __init__(self):
        super().__init__()
        self.inner = tiny.model()

    def forward(self, x):
        return self.inner(x)


class Rows(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index]


def own_loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def targets_if_any(batch):
    return batch[0], (batch[1] if len(batch) > 1 else None)


def labels_if_any(batch):
    return {"x": batch["x"]}, batch.get("klass")


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


FORMS = {
    "tuple of a tensor": {"test": (X,)},
    "array": {"test": (X.numpy(),)},
    "tensor": {"test": X},
    "dict": {"test": {"x": X}},
    "TensorDataset": {"test": TensorDataset(X)},
    "dataset": {"test": Rows()},
    "list": {"test": list(X)},
    "loader": {"test": DataLoader(Rows(), batch_size=8)},
    "stream": {"test": lambda: iter(X)},
    "stream of tuples": {"test": lambda: ((row,) for row in X)},
    "Task(inputs=)": {"test": (X,), "inputs": targets_if_any},
    "Task(inputs=) of a dict": {
        "train": {"x": X, "klass": Y},
        "test": {"x": X},
        "inputs": labels_if_any,
    },
    "Task(inputs=) with a custom loss": {
        "test": (X,),
        "inputs": targets_if_any,
        "loss": own_loss,
    },
    "several losses": {
        "model": lambda: Heads(),
        "loss": {"a": nn.CrossEntropyLoss()},
        "train": {"x": X, "a": Y},
        "test": {"x": X},
    },
    "the model's own loss": {
        "model": lambda: OwnLoss(),
        "loss": "model",
        "items": "tokens",
        "train": {"x": X, "labels": Y},
        "test": {"x": X},
    },
}


class Heads(Named):
    def forward(self, x):
        return {"a": self.inner(x)}


class OwnLoss(Named):
    """Computes its loss if it gets labels, as the models of transformers do."""

    def forward(self, x, labels=None):
        logits = self.inner(x)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits} if loss is not None else {"logits": logits}


def output_of(predictions):
    return predictions["output_a" if "output_a" in predictions else "output"]


@pytest.mark.parametrize("form", FORMS)
def test_test_data_without_targets_is_predicted_as_by_plain_torch(tmp_path, form):
    parts = {"model": Named, **FORMS[form]}
    task, config = tiny.task(**parts), tiny.config(max_steps=2)
    trainer = surestep.Trainer(task, config, run=tmp_path / "r")
    run = trainer.fit()
    plain = Named()
    run.load_model(plain, "last")
    with torch.no_grad():
        expected = plain.eval().inner(X).numpy()
    _, closed = predict_run(run, tiny.task(**parts), config, which="last")
    for found in (trainer.predict("test", "last"), closed):
        np.testing.assert_allclose(output_of(found), expected, rtol=1e-5, atol=1e-6)
        assert not [name for name in found if name.startswith("target")]


@pytest.mark.parametrize("form", FORMS)
def test_test_data_without_targets_is_not_evaluated(tmp_path, form):
    parts = {"model": Named, **FORMS[form]}
    task, config = tiny.task(**parts), tiny.config(max_steps=1)
    with tiny.prepare(tmp_path / "r", parts, max_steps=1) as session:
        session.save()
        with pytest.raises(NoTargetsError, match="The test data cannot be evaluated") as caught:
            session.evaluate("test")
    assert "trainer.predict('test')" in str(caught.value)
    with pytest.raises(NoTargetsError, match="The test data cannot be evaluated"):
        evaluate_run(session.run, task, config, split="test", which="last")


@pytest.mark.parametrize("form", FORMS)
def test_dry_run_predicts_test_data_without_targets(form):
    actions = dry_run(tiny.task(**{"model": Named, **FORMS[form]}), tiny.config())
    assert [action.what for action in actions] == [
        *("start-up checks", "one step", "predict test", "save", "load")
    ]
    assert [action.result for action in actions if action.what == "predict test"] == ["8 samples"]


@pytest.mark.parametrize("form", ["tuple of a tensor", "tensor", "dict", "loader"])
def test_validation_data_without_targets_is_rejected_before_the_first_step(tmp_path, form):
    with pytest.raises(NoTargetsError, match="The val data cannot be evaluated") as caught:
        tiny.prepare(tmp_path, {"model": Named, "val": FORMS[form]["test"]})
    assert "Task(test=...)" in str(caught.value)


def test_loss_that_needs_no_targets_is_evaluated_and_a_metric_that_does_is_not(tmp_path):
    def spread(outputs, targets):
        return outputs.square().mean()

    parts = {"loss": spread, "test": (X,), "inputs": targets_if_any}
    with tiny.prepare(tmp_path / "a", parts) as session:
        found = session.evaluate("test")
    with torch.no_grad():
        expected = float(tiny.model().eval()(X).square().mean())
    assert found["test/loss"] == pytest.approx(expected)
    with (
        tiny.prepare(tmp_path / "b", {**parts, "metrics": {"accuracy": accuracy}}) as session,
        pytest.raises(NoTargetsError, match="A metric fails without: "),
    ):
        session.evaluate("test")


def test_model_that_fails_on_data_without_targets_is_not_a_lack_of_targets(tmp_path):
    parts = {"test": (X[:, :2],), "inputs": targets_if_any, "loss": own_loss}
    with (
        tiny.prepare(tmp_path, parts) as session,
        pytest.raises(surestep.SurestepError, match="Linear") as caught,
    ):
        session.evaluate("test")
    assert not isinstance(caught.value, NoTargetsError)


def test_training_data_without_targets_is_named(tmp_path):
    with pytest.raises(NoTargetsError, match="not clear which part is the targets"):
        tiny.prepare(tmp_path, {"train": (X,)})
