"""The model's prediction for each sample, compared with plain PyTorch."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from surestep import losses
from surestep.base.errors import ConfigError, TaskError
from surestep.engine.evaluate.predict import make_predict_loader, predict
from surestep.engine.model.precision import autocast
from tests import tiny

X, Y = tiny.data()


def predicted(parts=None, part="test", passes=None, watch=None, **said):
    planned = tiny.plan(parts, **said)
    task = planned.task
    data = {"test": task.test, "train": task.train, **task.val_sets()}[part]
    loader = make_predict_loader(data, part, task=task, plan=planned.plan)
    parts = {"autocast": autocast(planned.plan)}
    try:
        return predict(planned.model, loader, planned.loss, passes=passes, watch=watch, **parts)
    finally:
        loader.close()


def expected(x=X, net=None):
    net = net or tiny.model()
    with torch.no_grad():
        return net.eval()(x).numpy()


@pytest.mark.parametrize("size", [1, 3, 8, 20, 64])
def test_predictions_equal_the_plain_forward_for_any_batch_size(size):
    found = predicted({"test": (X, Y)}, validation={}, micro_batch_size=1, batch_size=size)
    assert list(found.arrays) == ["index", "output", "prediction", "target"]
    assert found["index"].tolist() == list(range(20))
    np.testing.assert_allclose(found["output"], expected(), rtol=1e-5, atol=1e-6)
    assert (found["prediction"] == expected().argmax(1)).all()
    assert (found["target"] == Y.numpy()).all()
    assert (found.samples, found.passes, found.notices) == (20, None, ())


def test_predictions_are_a_mapping_of_arrays_by_name():
    found = predicted({"test": (X, Y)}, validation={})
    names = ["index", "output", "prediction", "target"]
    assert list(found) == list(found.keys()) == names
    assert len(found) == len(names)
    assert all(found[name] is array for name, array in found.items())
    assert dict(found).keys() == {**found}.keys() == found.arrays.keys()
    assert "output" in found
    assert "outputs" not in found
    assert found.get("outputs") is None
    assert found.samples == len(X)


@pytest.mark.parametrize(("name", "meant"), [("outputs", "Did you mean 'output'"), (0, "Known: ")])
def test_array_that_does_not_exist_is_named_with_those_that_do(name, meant):
    with pytest.raises(KeyError, match=meant):
        predicted({"test": (X, Y)}, validation={})[name]


class Stored(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row], Y[row]


class Streamed(IterableDataset):
    """Splits its samples among its workers."""

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from ((X[row], Y[row]) for row in range(first, len(X), step))


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(X, Y),
        Subset(TensorDataset(X, Y), range(20)),
        {"x": X, "y": Y},
        Stored(),
        DataLoader(Stored(), batch_size=3),
        DataLoader(Stored(), batch_size=3, num_workers=2),
        lambda: zip(X, Y, strict=True),
        Streamed(),
        DataLoader(Streamed(), batch_size=3, num_workers=2),
    ],
    ids=[
        *("tensors", "subset", "dict", "dataset", "loader", "workers", "function"),
        *("stream", "stream with workers"),
    ],
)
def test_predictions_are_in_dataset_order_for_any_type_of_data(data):
    class Named(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    parts = {"test": data, "model": Named(*tiny.model())}
    found = predicted(parts, batch_size=8)
    assert (found["target"] == Y.numpy()).all()
    assert found["index"].tolist() == list(range(20))
    np.testing.assert_allclose(found["output"], expected(), rtol=1e-5, atol=1e-6)


def test_predictions_of_training_data_are_complete_and_in_stored_order():
    found = predicted({"train": DataLoader(TensorDataset(X, Y), 8, shuffle=True)}, part="train")
    assert (found["target"] == Y.numpy()).all()


Pair = namedtuple("Pair", "mean extra")


class Answers(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.inner = nn.Linear(4, 2)
        self.answer = answer

    def forward(self, x):
        return self.answer(self.inner(x))


@pytest.mark.parametrize(
    ("answer", "shapes"),
    [
        (lambda y: y, {"output": (20, 2)}),
        (lambda y: y[:, 0], {"output": (20,)}),
        (lambda y: y[:, :1], {"output": (20, 1)}),
        (lambda y: y[:, None, :, None].expand(-1, 3, 2, 1), {"output": (20, 3, 2, 1)}),
        (lambda y: {"a": y, "b": y[:, 0]}, {"output_a": (20, 2), "output_b": (20,)}),
        (lambda y: (y, {"c": y > 0}), {"output_0": (20, 2), "output_1_c": (20, 2)}),
        (lambda y: Pair(y, [y]), {"output_mean": (20, 2), "output_extra_0": (20, 2)}),
        (lambda y: (y, None, "words"), {"output_0": (20, 2)}),
    ],
)
def test_nested_outputs_become_arrays_by_name(answer, shapes):
    loss = lambda outputs, targets: torch.zeros((), requires_grad=True)  # noqa: E731
    found = predicted({"test": (X, Y), "model": Answers(answer), "loss": loss})
    said = {name: each.shape for name, each in found.arrays.items() if "output" in name}
    assert said == shapes


def test_output_with_one_number_per_batch_is_dropped_with_a_notice():
    loss = lambda outputs, targets: outputs[0].mean()  # noqa: E731
    model = Answers(lambda y: (y, y.sum()))
    found = predicted({"test": (X, Y), "model": model, "loss": loss})
    assert "output_1" not in found.arrays
    assert found.notices == ("output_1 is left out: one number for a whole batch.",)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda y: y.sum(0), r"output has shape \(2,\) for 8 rows.*pad all samples"),
        (
            lambda y: y[:, : len(y) // 4],
            r"rows of shape \(2,\) in one batch and \(1,\) in another",
        ),
        (lambda y: "words", "returned a str, which holds no tensor with a row"),
        (lambda y: y.sum(), r"returned a tensor of shape \(\), which holds no tensor with a row"),
        (lambda y: {"a": y} | ({"b": y} if len(y) == 4 else {}), "output_b exists for 4 of 20"),
    ],
)
def test_outputs_without_a_row_for_each_sample_are_rejected(answer, message):
    loss = lambda outputs, targets: torch.zeros((), requires_grad=True)  # noqa: E731
    with pytest.raises(TaskError, match=message):
        predicted({"test": (X, Y), "model": Answers(answer), "loss": loss})


@pytest.mark.parametrize("data", [(X,), {"input": X}, TensorDataset(X), X.clone()])
def test_data_without_targets_can_be_predicted(data):
    found = predicted({"test": data, "model": Net()})
    assert list(found.arrays) == ["index", "output", "prediction"]
    np.testing.assert_allclose(found["output"], expected(), rtol=1e-5, atol=1e-6)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tiny.model()

    def forward(self, input):
        return self.inner(input)


def test_inputs_function_of_the_task_is_used_for_predictions():
    inputs = lambda batch: (batch["a"] * 2, batch.get("b"))  # noqa: E731
    for data in ({"a": X, "b": Y}, {"a": X}):
        found = predicted({"test": data, "train": {"a": X, "b": Y}, "inputs": inputs})
        np.testing.assert_allclose(found["output"], expected(X * 2), rtol=1e-5, atol=1e-6)
        assert ("target" in found.arrays) == ("b" in data)


def test_task_without_a_loss_passes_the_full_batch_to_the_model():
    parts = {"loss": None, "step": lambda turn: None, "train": (X,)}
    found = predicted(parts, part="train")
    assert list(found.arrays) == ["index", "output"]
    np.testing.assert_allclose(found["output"], expected(), rtol=1e-5, atol=1e-6)


def test_model_with_its_own_loss_predicts_batches_without_labels():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.model()

        def forward(self, x, labels=None):
            logits = self.inner(x)
            loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
            return {"loss": loss, "logits": logits}

    parts = {"loss": "model", "model": Own(), "train": {"x": X, "labels": Y}}
    for data in ({"x": X}, {"x": X, "labels": Y}):
        found = predicted({**parts, "test": data})
        np.testing.assert_allclose(found["output"], expected(), rtol=1e-5, atol=1e-6)
        assert ("target" in found.arrays) == ("labels" in data)


def test_half_precision_predictions_are_written_as_fp32():
    found = predicted({"test": (X, Y)}, precision="bf16")
    assert found["output"].dtype == np.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert (found["output"][:8] == tiny.model().eval()(X[:8]).detach().float().numpy()).all()


def test_predictions_use_eval_mode_and_restore_train_mode():
    net = tiny.model(dropout=0.5).train()
    found = predicted({"test": (X, Y), "model": net})
    assert net.training
    assert net[2].training
    np.testing.assert_allclose(found["output"], expected(), rtol=1e-5, atol=1e-6)


def test_limit_of_evaluations_is_not_one_of_predictions():
    found = predicted(
        {"val": (X, Y), "test": (X, Y)}, part="val", limit_val_batches=1, batch_size=2
    )
    assert found.samples == len(Y)


@pytest.mark.parametrize("at_once", [2, 3, 1024])
def test_nan_outputs_get_the_class_minus_one_and_a_notice(at_once, monkeypatch):
    monkeypatch.setattr("surestep.engine.evaluate.predict._ROWS", at_once)
    broken = X.clone()
    broken[3] = broken[-1] = float("nan")
    found = predicted({"test": (broken, Y)})
    assert found["prediction"][[3, -1]].tolist() == [-1, -1]
    assert (found["prediction"] == -1).sum() == 2
    assert found.notices == (
        "2 predictions are -1: the outputs there are not numbers. Check the inputs and the "
        "weights.",
    )


def test_targets_without_a_row_per_sample_are_dropped_with_a_notice():
    inputs = lambda batch: (batch[0], batch[1].repeat(2))  # noqa: E731
    found = predicted({"test": (X, Y), "inputs": inputs})
    assert "target" not in found.arrays
    assert found.notices == ("target is left out: shape (16,) for 8 rows.",)


def test_progress_is_reported_after_each_batch():
    done = []
    predicted({"test": (X, Y)}, watch=done.append)
    assert done == [8, 16, 20]


def by_hand(net, passes, size, seed=0):
    """Compute Monte-Carlo dropout in plain PyTorch, with all passes in memory."""
    from surestep.engine.rng import derive_seed

    net.eval()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    every = []
    for number in range(1, passes + 1):
        outputs = []
        for first in range(0, len(X), size):
            torch.manual_seed(derive_seed("evaluate", seed, first, number, "test"))
            outputs.append(net(X[first : first + size]).detach())
        every.append(torch.cat(outputs))
    return torch.stack(every).double()


def test_monte_carlo_dropout_equals_a_plain_loop():
    net = nn.Sequential(*tiny.model(dropout=0.5), nn.BatchNorm1d(3))
    net[4].running_mean.fill_(0.3)
    found = predicted({"test": (X, Y), "model": net}, passes=7)
    every = by_hand(net, 7, 8)
    assert found.passes == 7
    np.testing.assert_allclose(found["output"], every.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["spread"], every.std(0), rtol=1e-5, atol=1e-6)
    chance = every.softmax(2).mean(0)
    np.testing.assert_allclose(found["probability"], chance, rtol=1e-5, atol=1e-6)
    entropy = -(chance * chance.log()).sum(1)
    np.testing.assert_allclose(found["entropy"], entropy, rtol=1e-5, atol=1e-6)
    assert (found["prediction"] == chance.argmax(1).numpy()).all()
    assert (found["spread"] > 0).any()
    assert net[4].num_batches_tracked == 0


@pytest.mark.parametrize("loss", ["classes last", "classes second", "torch"])
@pytest.mark.parametrize("passes", [None, 3])
def test_classes_are_those_of_the_dimension_that_the_loss_reads(loss, passes):
    x, classes = torch.randn(20, 3, 4), torch.zeros(20, 3, dtype=torch.int64)
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))  # as many positions as classes
    dim, given = {
        "classes last": (-1, losses.multiclass(class_dim=-1)),
        "classes second": (1, losses.multiclass()),
        "torch": (1, nn.CrossEntropyLoss()),
    }[loss]
    found = predicted({"test": (x, classes), "model": net, "loss": given}, passes=passes)
    scores = found["output" if passes is None else "probability"]
    assert (found["prediction"] == scores.argmax(dim)).all()
    assert found["prediction"].shape == (20, 3)
    if passes:
        np.testing.assert_allclose(scores.sum(dim), 1, rtol=1e-5)
        entropy = -(scores * np.log(scores)).sum(dim)
        np.testing.assert_allclose(found["entropy"], entropy, rtol=1e-5)


def test_monte_carlo_dropout_is_repeatable_and_preserves_the_random_state():
    parts = {"test": (X, Y), "model": tiny.model(dropout=0.5)}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again = predicted(parts, passes=3), predicted(parts, passes=3)
    assert torch.equal(torch.get_rng_state(), before)
    for name in first.arrays:
        assert (first[name] == again[name]).all()
    other = predicted(parts, passes=3, seed=1)
    assert (first["spread"] != other["spread"]).any()


def test_zero_spread_causes_a_notice():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.drop = tiny.model(), nn.Dropout(0.5)

        def forward(self, x):
            return self.inner(x)

    found = predicted({"test": (X, Y), "model": Unused()}, passes=2)
    assert not found["spread"].any()
    assert "The spread is 0 everywhere" in found.notices[0]


@pytest.mark.parametrize(
    "inputs", [None, lambda batch: ({"x": batch[0]}, batch[1])], ids=["tuple", "dict"]
)
def test_model_that_writes_into_its_inputs_gets_fresh_ones_in_each_pass(inputs):
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.drop = tiny.model(), nn.Dropout(0.001)

        def forward(self, x):
            x.mul_(2)
            return self.inner(x) + 0 * self.drop(x).sum()

    parts = {"test": (X.clone(), Y), "model": Writing(), "inputs": inputs}
    found = predicted(parts, passes=3)
    np.testing.assert_allclose(found["output"], expected(X * 2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("passes", [0, 1, -3])
def test_fewer_than_two_dropout_passes_are_rejected(passes):
    with pytest.raises(ConfigError, match=f"with {passes} passes has no spread. Use 2 or more"):
        predicted({"test": (X, Y)}, passes=passes)


def test_dropout_passes_of_a_model_without_dropout_are_rejected():
    with pytest.raises(TaskError, match=r"has no dropout.*Leave --mc-dropout out"):
        predicted({"test": (X, Y)}, passes=3)
