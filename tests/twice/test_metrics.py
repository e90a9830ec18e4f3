"""Metrics: means, pairs, objects and whole sets, with targets that are ignored."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torchmetrics import MeanSquaredError, MetricCollection
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train

G = torch.Generator().manual_seed(5)
X = torch.randn(53, 6, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (53, 6), generator=G)
Y[torch.rand(53, 6, generator=G) < 0.4] = -100
Y[7:14] = -100  # a batch of 7 that is ignored
Y[41:43] = -100
X1 = torch.randn(67, 4, generator=G, dtype=torch.float64)
Y1 = torch.randint(0, 3, (67,), generator=G)


class Tagger(nn.Module):
    """Returns logits (samples, classes, positions)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).transpose(1, 2)


def evaluate_tagger(batch: int, metrics: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Return the outputs of all 43 samples, and what an evaluation in batches returns."""
    torch.manual_seed(0)
    net = Tagger()
    with torch.no_grad():
        outputs = net(X[:43])
    task = surestep.Task(
        net, nn.CrossEntropyLoss(), train=(X, Y), val=(X[:43], Y[:43]), metrics=metrics
    )
    config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": batch})
    return outputs, prepare(task, config).evaluate().with_tables()


def evaluate_classes(batch: int, metrics: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """As `evaluate_tagger`, of 67 samples with one class each."""
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    with torch.no_grad():
        outputs = net(X1)
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X1, Y1), val=(X1, Y1), metrics=metrics)
    config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": batch})
    return outputs, prepare(task, config).evaluate().with_tables()


@pytest.mark.parametrize("batch", [1, 7, 43])
def test_pair_that_counts_samples_sees_batches_whose_targets_are_ignored(batch: int) -> None:
    outputs, ours = evaluate_tagger(batch, {"norm": lambda o, t: (o.square().sum(), len(o))})
    assert_same(float(outputs.square().sum() / 43), ours["val/norm"])


class CountSamples:
    """An object that counts all samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.samples, self.total = 0, 0.0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.samples += len(outputs)
        self.total += float(outputs.abs().sum())

    def compute(self) -> dict[str, float]:
        return {"samples": self.samples, "mean": self.total / self.samples}


@pytest.mark.parametrize("batch", [1, 7, 43])
def test_object_is_updated_with_batches_whose_targets_are_ignored(batch: int) -> None:
    outputs, ours = evaluate_tagger(batch, {"seen": CountSamples()})
    assert_same(43.0, ours["val/seen_samples"])
    assert_same(float(outputs.abs().sum() / 43), ours["val/seen_mean"])


@pytest.mark.parametrize("batch", [1, 7, 43])
def test_torchmetrics_of_outputs_alone_sees_ignored_batches(batch: int) -> None:
    class Spread(MeanSquaredError):
        def update(self, preds: Tensor, target: Tensor) -> None:
            super().update(preds.contiguous(), torch.zeros(preds.shape))

    outputs, ours = evaluate_tagger(batch, {"spread": Spread().set_dtype(torch.float64)})
    assert_same(float(outputs.square().mean()), ours["val/spread"])


@pytest.mark.parametrize("batch", [1, 7, 43])
def test_means_that_are_undefined_for_ignored_batches_leave_them_out(batch: int) -> None:
    def accuracy(outputs: Tensor, targets: Tensor) -> float:
        kept = (targets != -100).numpy()
        right = (outputs.argmax(1) == targets).numpy()[kept]
        return sum(right.tolist()) / len(right)  # a ZeroDivisionError where all are ignored

    def pair(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        kept = (targets != -100).sum()
        return nn.functional.cross_entropy(outputs, targets) * kept, kept  # NaN times 0

    outputs, ours = evaluate_tagger(batch, {"accuracy": accuracy, "entropy": pair})
    kept = Y[:43] != -100
    plain = (outputs.argmax(1) == Y[:43])[kept].double().mean()
    assert_same(float(plain), ours["val/accuracy"])
    assert_same(float(nn.functional.cross_entropy(outputs, Y[:43])), ours["val/entropy"])


def test_sum_that_fails_for_ignored_batches_is_not_left_out_in_silence() -> None:
    def share(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
        kept = int((targets != -100).sum())
        return len(outputs) / kept * kept, len(outputs)  # a ZeroDivisionError where all are ignored

    class Fails(CountSamples):
        def update(self, outputs: Tensor, targets: Tensor) -> None:
            if (targets == -100).all():
                raise IndexError("no target")
            super().update(outputs, targets)

    for metrics in ({"seen": Fails()}, {"share": share}):
        with pytest.warns(UserWarning, match="leaves out a batch whose targets are all ignored"):
            evaluate_tagger(1, metrics)


@pytest.mark.parametrize("batch", [1, 7, 67])
def test_torchmetrics_equal_one_update_with_all_samples(batch: int) -> None:
    def made() -> dict[str, Any]:
        return {
            "accuracy": MulticlassAccuracy(3, average="macro"),
            "both": MetricCollection(
                {"f1": MulticlassF1Score(3), "micro": MulticlassAccuracy(3, average="micro")}
            ),
            "each": MulticlassAccuracy(3, average=None),
            "table": MulticlassConfusionMatrix(3),
        }

    outputs, ours = evaluate_classes(batch, made())
    plain = made()
    for metric in plain.values():
        metric.update(outputs, Y1)
    both = plain["both"].compute()
    assert_same(
        [
            float(plain["accuracy"].compute()),
            float(both["f1"]),
            float(both["micro"]),
            plain["each"].compute().tolist(),
            plain["table"].compute().tolist(),
        ],
        [ours[f"val/{name}"] for name in ("accuracy", "both_f1", "both_micro", "each", "table")],
    )


def test_object_with_two_names_gets_each_sample_once_for_each() -> None:
    table, count = MulticlassConfusionMatrix(3), CountSamples()
    outputs, ours = evaluate_classes(7, {"one": table, "two": table, "seen": count, "again": count})
    plain = MulticlassConfusionMatrix(3)
    plain.update(outputs, Y1)
    assert_same([plain.compute().tolist()] * 2, [ours["val/one"], ours["val/two"]])
    assert_same([67.0, 67.0], [ours["val/seen_samples"], ours["val/again_samples"]])


def test_torchmetrics_that_ignores_targets_equals_one_update() -> None:
    outputs, ours = evaluate_tagger(7, {"accuracy": MulticlassAccuracy(3, ignore_index=-100)})
    plain = MulticlassAccuracy(3, ignore_index=-100)
    plain.update(outputs, Y[:43])
    assert_same(float(plain.compute()), ours["val/accuracy"])


def test_whole_set_with_preprocess_of_tokens_equals_the_function_of_all() -> None:
    def keep(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        kept = targets != -100
        return outputs.softmax(1)[:, 0][kept], targets[kept]

    def auc(chance: Tensor, targets: Tensor) -> float:
        return float(roc_auc_score(targets == 0, chance))

    metric = surestep.whole_set(auc, preprocess=keep)
    outputs, ours = evaluate_tagger(5, {"auc": metric})
    assert_same(auc(*keep(outputs, Y[:43])), ours["val/auc"])


def test_whole_set_returns_numbers_tables_and_numpy_values() -> None:
    def many(outputs: Tensor, targets: Tensor) -> dict[str, Any]:
        return {
            "numpy": np.float64(outputs.mean()),
            "bool": bool((outputs > -99).all()),
            "row": outputs[5].tolist(),
            "tensor": outputs[:2] * targets[:2, None],
            "int": torch.tensor(7),
        }

    outputs, ours = evaluate_classes(11, {"many": surestep.whole_set(many)})
    assert_same(float(outputs.mean()), ours["val/many_numpy"])
    assert_same(1.0, ours["val/many_bool"])
    assert_same(outputs[5].tolist(), ours["val/many_row"])
    assert_same((outputs[:2] * Y1[:2, None]).tolist(), ours["val/many_tensor"])
    assert_same(7.0, ours["val/many_int"])


def test_whole_set_table_may_be_a_numpy_array() -> None:
    def table(outputs: Tensor, targets: Tensor) -> Any:
        found = np.zeros((3, 3), dtype=np.int64)
        np.add.at(found, (targets.numpy(), outputs.argmax(1).numpy()), 1)
        return found

    outputs, ours = evaluate_classes(11, {"table": surestep.whole_set(table)})
    assert_same(table(outputs, Y1).tolist(), ours["val/table"])


def test_correlation_of_a_regression_is_that_of_all_samples() -> None:
    torch.manual_seed(0)
    net, target = nn.Linear(4, 1).double(), X1[:, :1].sin()
    with torch.no_grad():
        plain = np.corrcoef(net(X1)[:, 0].numpy(), target[:, 0].numpy())[0, 1]
    metric = surestep.whole_set(lambda o, t: np.corrcoef(o[:, 0].numpy(), t[:, 0].numpy())[0, 1])
    task = surestep.Task(net, "mse", train=(X1, target), val=(X1, target), metrics={"r": metric})
    config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": 13})
    assert_same(float(plain), prepare(task, config).evaluate()["val/r"])


def test_several_sets_of_different_sizes_have_their_own_states() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    sizes = {"few": 1, "some": 13, "many": 67}
    metrics: dict[str, Any] = {
        "seen": CountSamples(),
        "accuracy": lambda o, t: (o.argmax(1) == t).double().mean(),
        "rows": surestep.whole_set(lambda o, t: float(len(o))),
    }
    val = {name: (X1[:size], Y1[:size]) for name, size in sizes.items()}
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X1, Y1), val=val, metrics=metrics)
    session = prepare(task, plain_config(max_steps=1, batch_size=7, validation={"batch_size": 5}))
    first, second = session.evaluate(), session.evaluate()
    assert_same(first, second, exact=True)
    for name, size in sizes.items():
        with torch.no_grad():
            outputs = net(X1[:size])
        assert_same(float(size), first[f"{name}/seen_samples"])
        assert_same(float(size), first[f"{name}/rows"])
        assert_same(
            float((outputs.argmax(1) == Y1[:size]).double().mean()), first[f"{name}/accuracy"]
        )


def test_metric_object_does_not_keep_samples_of_an_earlier_evaluation() -> None:
    torch.manual_seed(0)
    net, auc = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double(), BinaryAUROC()
    target = (Y1 == 1).double()
    task = surestep.Task(
        net,
        "binary",
        train=(X1, target),
        val=(X1[:31], target[:31]),
        metrics={"auc": surestep.whole_set(lambda o, t: roc_auc_score(t, o)), "same": auc},
    )
    config = plain_config(epochs=3, batch_size=7, validation={"batch_size": 4})
    task.metrics["same"].update(torch.rand(3), torch.tensor([0, 1, 1]))
    session, plain, ours = prepare(task, config), [], []
    for result in session.steps():
        if result.step % 11 == 0:
            with torch.no_grad():
                plain.append(float(roc_auc_score(target[:31], net(X1[:31]))))
            found = session.evaluate()
            ours.append(found["val/auc"])
            assert math.isclose(found["val/same"], found["val/auc"], abs_tol=1e-6)
    assert_same(plain, ours)


class TwoHeads(nn.Module):
    """Two heads on one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5).double()
        self.kind, self.size = nn.Linear(5, 3).double(), nn.Linear(5, 1).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x).tanh()
        return {"kind": self.kind(hidden), "size": self.size(hidden)[:, 0]}


def test_metrics_of_several_heads_are_means_over_samples() -> None:
    torch.manual_seed(0)
    net, kinds, sizes = TwoHeads(), Y1.clone(), X1.sum(1)
    kinds[::3] = -100
    kinds[7:14] = -100

    def mean(outputs: Any, targets: Any) -> Tensor:
        return (outputs["size"] - targets["size"]).abs().mean()

    def pair(outputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        kept = targets["kind"] != -100
        return (outputs["kind"].argmax(1) == targets["kind"])[kept].sum(), kept.sum()

    task = surestep.Task(
        net,
        {"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()},
        loss_weights={"kind": 0.3},
        train={"x": X1, "kind": kinds, "size": sizes},
        val={"other": {"x": X1[:31], "kind": kinds[:31], "size": sizes[:31]}},
        metrics={"mae": mean, "accuracy": pair},
    )
    ours = prepare(
        task, plain_config(max_steps=1, batch_size=7, validation={"batch_size": 7})
    ).evaluate()
    with torch.no_grad():
        found = net(X1[:31])
    kind = nn.functional.cross_entropy(found["kind"], kinds[:31])
    size = nn.functional.mse_loss(found["size"], sizes[:31])
    kept = kinds[:31] != -100
    plain = {
        "other/loss": float(0.3 * kind + size),
        "other/loss_kind": float(kind),
        "other/loss_size": float(size),
        "other/mae": float((found["size"] - sizes[:31]).abs().mean()),
        "other/accuracy": float((found["kind"].argmax(1) == kinds[:31])[kept].double().mean()),
    }
    assert_same(plain, ours)


def test_gradient_of_the_inputs_is_a_mean_over_samples() -> None:
    def saliency(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            x = inputs.clone().requires_grad_()
            (grad,) = torch.autograd.grad(model(x)[:, 0].sum(), x)
        return grad.norm(dim=1).mean()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(), nn.Linear(5, 3)).double()
    task = surestep.Task(
        net,
        nn.CrossEntropyLoss(),
        train=(X1, Y1),
        val=(X1[:31], Y1[:31]),
        metrics={"saliency": surestep.InputMetric(saliency)},
    )
    config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": 6})
    ours = prepare(task, config).evaluate()
    net.eval()
    assert_same(float(saliency(net, X1[:31], Y1[:31])), ours["val/saliency"])


def test_mean_is_nan_if_one_sample_is_nan_and_a_whole_set_may_leave_it_out() -> None:
    def chance(outputs: Tensor, targets: Tensor) -> Tensor:
        found = outputs.softmax(1).amax(1)
        return found.masked_fill(outputs[:, 0] > largest, math.nan)

    torch.manual_seed(0)
    with torch.no_grad():
        largest = nn.Linear(4, 3).double()(X1)[:, 0].topk(2).values[1]  # one sample is above it
    outputs, ours = evaluate_classes(
        10,
        {
            "mean": lambda o, t: chance(o, t).mean(),
            "rest": surestep.whole_set(lambda o, t: chance(o, t).nanmean()),
        },
    )
    assert_same(float(chance(outputs, Y1).mean()), ours["val/mean"])
    assert math.isnan(ours["val/mean"])
    assert_same(float(chance(outputs, Y1).nanmean()), ours["val/rest"])


@pytest.mark.parametrize("mode", ["min", "max"])
def test_best_is_the_first_best_evaluation_of_a_monitored_metric(mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3).double()
    plain_net = nn.Linear(4, 3).double()
    plain_net.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)

    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).double().mean()

    values = {}
    for epoch in range(1, 6):
        for x, y in in_batches(7, X1, Y1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(plain_net(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            values[epoch * 10] = float(accuracy(plain_net(X1[:31]), Y1[:31]))
    pick = max if mode == "max" else min
    best = pick(values, key=lambda step: (values[step], -step if mode == "max" else step))

    task = surestep.Task(
        net,
        nn.CrossEntropyLoss(),
        train=(X1, Y1),
        val={"a": (X1[31:], Y1[31:]), "b": (X1[:31], Y1[:31])},
        metrics={"accuracy": accuracy},
    )
    config = plain_config(
        epochs=5,
        batch_size=7,
        validation={"metric": "b/accuracy", "mode": mode, "every": "1 epoch", "batch_size": 4},
    )
    run = surestep.Trainer(task, config, run="run").fit()
    events = {
        e["step"]: e["metrics"]["b/accuracy"] for e in run.events() if e["event"] == "evaluation"
    }
    assert_same(values, events)
    assert_same(
        [best, values[best], 50], [run.best.step, run.best.metrics["b/accuracy"], run.last.step]
    )


def test_trained_steps_do_not_depend_on_metrics_that_draw_and_change_modes() -> None:
    def rude(outputs: Tensor, targets: Tensor) -> Tensor:
        torch.rand(3)
        np.random.rand()
        return outputs.detach().mean()

    def losses(metrics: dict[str, Any]) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)).double()
        task = surestep.Task(
            net, nn.CrossEntropyLoss(), train=(X1, Y1), val=(X1, Y1), metrics=metrics
        )
        found = []
        config = plain_config(epochs=1, batch_size=7)
        session = prepare(task, config)
        for result in session.steps():
            found.append(float(result.loss))
            session.evaluate()
        return found

    assert_same(losses({}), losses({"rude": surestep.whole_set(rude)}), exact=True)


def test_metric_of_probability_targets_is_a_mean_over_samples() -> None:
    torch.manual_seed(0)
    net, soft = nn.Linear(4, 3).double(), torch.rand(67, 3, generator=G, dtype=torch.float64)
    soft = soft / soft.sum(1, keepdim=True)

    def agreement(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.softmax(1) * targets).sum(1).mean()

    task = surestep.Task(
        net, "multiclass", train=(X1, soft), val=(X1, soft), metrics={"agree": agreement}
    )
    session = train(task, plain_config(max_steps=3, batch_size=7, validation={"batch_size": 6}))
    ours = session.evaluate()
    with torch.no_grad():
        outputs = net(X1)
    assert_same(float(agreement(outputs, soft)), ours["val/agree"])
    assert_same(float(nn.functional.cross_entropy(outputs, soft)), ours["val/loss"])
