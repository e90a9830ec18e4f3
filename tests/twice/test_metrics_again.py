"""Metrics of several structures, objects that share parts, dtypes and other ways to evaluate."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchmetrics import MetricCollection, MinMaxMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassStatScores
from torchmetrics.wrappers import ClasswiseWrapper

import surestep
from surestep.trainer.evaluator import evaluate_run
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train

G = torch.Generator().manual_seed(11)
X = torch.randn(67, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (67,), generator=G)
Z = X[:, :1] - X[:, 1:2].sin()


def make_net(out: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, out).double()


def outputs_of(net: nn.Module, x: Tensor = X) -> Any:
    net.eval()
    with torch.no_grad():
        return net(x)


def evaluate(
    net: nn.Module, metrics: dict[str, Any], *, batch: int = 7, loss: Any = None, **data: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"train": (X, Y), "val": (X, Y)} | data
    task = surestep.Task(net, loss or nn.CrossEntropyLoss(), metrics=metrics, **given)
    config = plain_config(max_steps=1, batch_size=7, validation={"batch_size": batch})
    return prepare(task, config).evaluate().with_tables()


class Swapping(nn.Module):
    """Returns a dict whose keys come in an order that depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 1).double(), nn.Linear(4, 1).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = {"one": self.one(x), "two": self.two(x)}
        return found if float(x[0, 0]) > 0 else dict(reversed(found.items()))


def test_whole_set_of_named_outputs_does_not_depend_on_the_order_of_the_names() -> None:
    torch.manual_seed(0)
    net = Swapping()
    one, two = (outputs_of(part) for part in (net.one, net.two))
    metric = surestep.whole_set(lambda o, t: float((o["one"] - 2 * o["two"]).square().sum()))
    ours = evaluate(
        net,
        {"off": metric},
        batch=5,
        loss=lambda o, t: (o["one"] - t).square().mean(),
        train=(X, Z),
        val=(X, Z),
    )
    assert_same(float((one - 2 * two).square().sum()), ours["val/off"])


def test_whole_set_keeps_the_pair_of_preprocess_by_the_names_in_it() -> None:
    def keep(outputs: Tensor, targets: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        chance = outputs.softmax(1)
        kept = OrderedDict(first=chance[:, 0], last=chance[:, 2])
        if int(targets[0]) == 1:
            kept.move_to_end("first")
        return kept, targets

    def compute(kept: dict[str, Tensor], targets: Tensor) -> float:
        return float((kept["first"] * (targets == 0) - kept["last"] * (targets == 2)).sum())

    net = make_net()
    chance = outputs_of(net).softmax(1)
    plain = (chance[:, 0] * (Y == 0) - chance[:, 2] * (Y == 2)).sum()
    ours = evaluate(net, {"own": surestep.whole_set(compute, preprocess=keep)}, batch=6)
    assert_same(float(plain), ours["val/own"])


def test_object_in_a_collection_and_by_itself_gets_each_sample_once() -> None:
    net, scores = make_net(), MulticlassStatScores(3, average="micro")
    ours = evaluate(net, {"alone": scores, "both": MetricCollection({"scores": scores})})
    plain = MulticlassStatScores(3, average="micro")
    plain.update(outputs_of(net), Y)
    wanted = plain.compute().tolist()
    assert_same([wanted, wanted], [ours["val/alone"], ours["val/both_scores"]])


def test_object_in_a_wrapper_and_by_itself_gets_each_sample_once() -> None:
    net, accuracy = make_net(), MulticlassStatScores(3, average=None)
    wrapper = ClasswiseWrapper(accuracy, labels=["a", "b", "c"])
    ours = evaluate(net, {"each": wrapper, "table": accuracy})
    plain = MulticlassStatScores(3, average=None)
    plain.update(outputs_of(net), Y)
    assert_same(plain.compute().tolist(), ours["val/table"])
    for row, label in zip(plain.compute().tolist(), "abc", strict=True):
        assert_same(row, ours[f"val/each_multiclassstatscores_{label}"])


class CountSamples:
    """An object that counts samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.samples = 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.samples += len(outputs)

    def compute(self) -> float:
        return float(self.samples)


class PerSample:
    """An own object that has another one, which is a metric too."""

    def __init__(self, count: CountSamples) -> None:
        self.count = count
        self.reset()

    def reset(self) -> None:
        self.total = 0.0
        self.count.reset()

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.total += float(outputs.abs().sum())
        self.count.update(outputs, targets)

    def compute(self) -> float:
        return self.total / self.count.compute()


def test_own_object_that_has_another_metric_gets_each_sample_once() -> None:
    net, count = make_net(), CountSamples()
    ours = evaluate(net, {"count": count, "size": PerSample(count)})
    assert_same([67.0], [ours["val/count"]])
    assert_same(float(outputs_of(net).abs().sum() / 67), ours["val/size"])


def test_functions_of_one_collection_share_groups_and_count_once() -> None:
    """Torchmetrics shares the states of metrics that have the same ones."""
    net = make_net()
    parts: dict[str, Any] = {
        "macro": MulticlassAccuracy(3, average="macro"),
        "weighted": MulticlassAccuracy(3, average="weighted"),
        "scores": MulticlassStatScores(3, average=None),
    }
    shared = MetricCollection(parts, prefix="p_", postfix="_q")
    session = train(
        surestep.Task(
            net, nn.CrossEntropyLoss(), train=(X, Y), val=(X, Y), metrics={"all": shared}
        ),
        plain_config(epochs=1, batch_size=7, validation={"batch_size": 13}),
    )
    session.evaluate()
    ours = session.evaluate().with_tables()
    plain = MulticlassStatScores(3, average=None)
    plain.update(outputs_of(net), Y)
    assert_same(plain.compute().tolist(), ours["val/all_p_scores_q"])
    recall = [float(((outputs_of(net).argmax(1) == Y)[k == Y]).double().mean()) for k in range(3)]
    assert abs(sum(recall) / 3 - float(ours["val/all_p_macro_q"])) < 1e-6


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.uint8, torch.int8])
def test_sums_and_counts_of_small_types_are_added_in_large_ones(kind: torch.dtype) -> None:
    net = make_net()

    def pair(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        hits = (outputs.argmax(1) == targets).sum()
        return (16 * hits).to(kind), torch.tensor(16 * len(targets)).to(kind)

    hits = outputs_of(net).argmax(1) == Y
    ours = evaluate(net, {"hit": pair}, batch=3)
    assert_same(float(hits.double().mean()), ours["val/hit"])


def test_accuracy_under_class_weights_is_of_samples_and_the_loss_of_weights() -> None:
    net, weight = make_net(), torch.tensor([0.1, 3.0, 1.0], dtype=torch.float64)

    def hit(outputs: Tensor, targets: Tensor) -> Tensor:
        kept = targets != 2
        return (outputs.argmax(1) == targets)[kept].double().mean()

    loss = {"weight": weight, "label_smoothing": 0.1, "ignore_index": 2}
    ours = evaluate(net, {"hit": hit}, loss=nn.CrossEntropyLoss(**loss), batch=5)
    outputs = outputs_of(net)
    assert_same(float(nn.functional.cross_entropy(outputs, Y, **loss)), ours["val/loss"])
    assert_same(float(hit(outputs, Y)), ours["val/hit"])


def test_complex_outputs_that_are_conjugated_are_kept_and_predicted() -> None:
    class Wave(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.linear(x), dim=1).conj()

    torch.manual_seed(0)
    net, y = Wave(), Z.expand(-1, 3).contiguous()
    task = surestep.Task(
        net,
        lambda o, t: (o - t).abs().mean(),
        train=(X, y),
        val=(X, y),
        metrics={"imag": surestep.whole_set(lambda o, t: float(o.imag.sum()))},
    )
    session = prepare(task, plain_config(max_steps=1, batch_size=7))
    plain = outputs_of(net).resolve_conj()
    assert_same(float(plain.imag.sum()), session.evaluate()["val/imag"])
    found = torch.as_tensor(session.predict("val")["output"])
    assert_same(torch.view_as_real(plain), torch.view_as_real(found))


def test_outputs_that_are_negated_views_are_kept() -> None:
    class Phase(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return torch.complex(x[:, :1], self.linear(x)).conj().imag

    torch.manual_seed(0)
    net = Phase()
    metric = surestep.whole_set(lambda o, t: float(o.exp().sum()))
    ours = evaluate(net, {"own": metric}, loss=nn.MSELoss(), train=(X, Z), val=(X, Z))
    assert_same(float(outputs_of(net).exp().sum()), ours["val/own"])


def test_metric_that_writes_into_its_arguments_changes_no_data() -> None:
    net, x, y = make_net(), X.clone(), Y.clone()

    def destroy(outputs: Tensor, targets: Tensor) -> Tensor:
        outputs.exp_()
        targets.clamp_(max=1)
        return outputs[:, 0].mean()

    metrics = {"first": destroy, "second": lambda o, t: (t == 2).double().mean()}
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(x, y), val=(x, y), metrics=metrics)
    session = prepare(task, plain_config(max_steps=1, batch_size=7, validation={"batch_size": 6}))
    first, second = session.evaluate(), session.evaluate()
    assert_same(first, second, exact=True)
    assert_same(float(outputs_of(net)[:, 0].exp().mean()), first["val/first"])
    assert torch.equal(y, Y)
    assert_same(float(nn.functional.cross_entropy(outputs_of(net), Y)), first["val/loss"])


@pytest.mark.parametrize("limit", [1, 3])
def test_limited_evaluations_are_of_the_first_batches_of_each_set(limit: int) -> None:
    net, seen = make_net(), CountSamples()
    task = surestep.Task(
        net,
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val={"a": (X[:11], Y[:11]), "b": (X[3:], Y[3:])},
        test=(X, Y),
        metrics={"seen": seen, "rows": surestep.whole_set(lambda o, t: float(len(t)))},
    )
    options = {"validation": {"batch_size": 5}, "limit_val_batches": limit}
    session = prepare(task, plain_config(max_steps=1, batch_size=7, **options))
    ours, plain = session.evaluate(), {}
    for name, x, y in (("a", X[:11], Y[:11]), ("b", X[3:], Y[3:])):
        x, y = x[: 5 * limit], y[: 5 * limit]
        loss = float(nn.functional.cross_entropy(outputs_of(net, x), y))
        plain |= {f"{name}/loss": loss, f"{name}/seen": len(x), f"{name}/rows": float(len(x))}
    assert_same({k: float(v) for k, v in plain.items()}, ours)
    assert_same(67.0, session.evaluate("test")["test/rows"])
    assert_same(67.0, session.evaluate("train")["train/rows"])


class Gated(nn.Module):
    """Takes two keyword arguments, and drops some in training."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 3).double(), nn.Dropout(0.5)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.drop(self.linear(x)) * gate


def test_input_metric_of_keyword_arguments_and_its_checkpoint() -> None:
    def slope(model: nn.Module, inputs: dict[str, Tensor], targets: Tensor) -> Any:
        grads = surestep.input_gradients(model, inputs, lambda o: o.square().sum(1))
        return grads["gate"].abs().sum(), len(targets)

    torch.manual_seed(0)
    net, gate = Gated(), X[:, :1].sigmoid()
    data = {"x": X, "gate": gate, "y": Y}
    task = surestep.Task(
        net,
        nn.CrossEntropyLoss(),
        train=data,
        val={"own": {name: value[:31] for name, value in data.items()}},
        metrics={"slope": surestep.InputMetric(slope)},
    )
    config = plain_config(epochs=2, batch_size=7, validation={"batch_size": 6})
    trainer = surestep.Trainer(task, config, run="run")
    trainer.fit()
    found = trainer.evaluate("own", which="last")
    net.eval()
    g = gate[:31].clone().requires_grad_()
    (grad,) = torch.autograd.grad(net(X[:31], g).square().sum(), g)
    assert_same(float(grad.abs().sum() / 31), found["own/slope"])
    trainer.close()


def test_evaluations_of_checkpoints_leave_a_run_that_goes_on_as_it_is() -> None:
    plain_net, ours_net = make_net(), make_net()
    optimizer, losses, best = torch.optim.SGD(plain_net.parameters(), lr=0.1, momentum=0.9), [], []
    for step, (x, y) in enumerate([*in_batches(7, X, Y)] * 2, 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(plain_net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 4:
            kept = float(nn.functional.cross_entropy(outputs_of(plain_net, X[:31]), Y[:31]))
        if step in (4, 11, 17):
            best.append(kept)
    task = surestep.Task(
        ours_net, nn.CrossEntropyLoss(), train=(X, Y), val=(X[:31], Y[:31]), test=(X, Y)
    )
    config = plain_config(epochs=2, batch_size=7, optim={"momentum": 0.9})
    session, ours, found = prepare(task, config, run="run"), [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step == 4:
            session.save()
        if result.step in (4, 11, 17):
            found.append(session.evaluate_checkpoint("val", "last")["val/loss"])
            session.predict("test", "last")
    assert_same(losses, ours)
    assert_same(best, found)
    assert_same(list(plain_net.parameters()), list(ours_net.parameters()))


def test_lowest_and_highest_value_in_a_wrapper() -> None:
    net = make_net()
    ours = evaluate(net, {"hit": MinMaxMetric(MulticlassAccuracy(3, average="micro"))})
    plain = float((outputs_of(net).argmax(1) == Y).float().mean())
    assert_same([plain] * 3, [ours[f"val/hit_{name}"] for name in ("raw", "min", "max")])


def test_metrics_in_an_own_loop_with_own_batches_are_of_the_weights_at_that_time() -> None:
    plain_net, ours_net = make_net(), make_net()
    task = surestep.Task(
        ours_net,
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val=(X[:31], Y[:31]),
        metrics={"hit": lambda o, t: (o.argmax(1) == t).double().mean()},
    )
    session = prepare(task, plain_config(max_steps=9, batch_size=7))
    optimizer, plain, ours = torch.optim.SGD(plain_net.parameters(), lr=0.1), [], []
    for first in (0, 13, 5):
        x, y = X[first : first + 11], Y[first : first + 11]
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain_net(x), y).backward()
        optimizer.step()
        session.train_step([(x[:3], y[:3]), (x[3:], y[3:])])
        outputs = outputs_of(plain_net, X[:31])
        hit = float((outputs.argmax(1) == Y[:31]).double().mean())
        plain.append([float(nn.functional.cross_entropy(outputs, Y[:31])), hit])
        found = session.evaluate()
        ours.append([found["val/loss"], found["val/hit"]])
    assert_same(plain, ours)


@dataclass
class Parts:
    """What a model returns as a dataclass."""

    logits: Tensor
    hidden: dict[str, Tensor]


class WithParts(nn.Module):
    """Returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Parts:
        logits = self.linear(x)
        return Parts(logits, {"size": logits.abs().sum(1)})


def test_fields_of_a_dataclass_are_kept_and_predicted() -> None:
    torch.manual_seed(0)
    net = WithParts()
    size = surestep.whole_set(lambda o, t: float((o.hidden["size"] * (t == 1)).median()))
    task = surestep.Task(
        net,
        lambda o, t: nn.functional.cross_entropy(o.logits, t),
        train=(X, Y),
        val=(X, Y),
        metrics={"size": size},
    )
    session = prepare(task, plain_config(max_steps=1, batch_size=7))
    plain = outputs_of(net)
    wanted = float((plain.hidden["size"] * (Y == 1)).median())
    assert_same(wanted, session.evaluate()["val/size"])
    found = session.predict("val")
    assert_same(plain.logits, torch.as_tensor(found["output_logits"]))
    assert_same(plain.hidden["size"], torch.as_tensor(found["output_hidden_size"]))


def test_metric_that_takes_gradients_has_the_same_value_for_a_closed_run() -> None:
    def slope(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            x = inputs.clone().requires_grad_()
            (grad,) = torch.autograd.grad(model(x).square().sum(), x)
        return grad.norm(dim=1).mean()

    def make() -> surestep.Task:
        metrics = {"slope": surestep.InputMetric(slope)}
        return surestep.Task(
            make_net(), nn.CrossEntropyLoss(), train=(X, Y), val=(X, Y), metrics=metrics
        )

    config = plain_config(epochs=2, batch_size=7)
    run = surestep.Trainer(make(), config, run="run").fit()
    net = make_net()
    run.load_model(net, which="last")
    _, ours = evaluate_run(run, make(), config, split="val", which="last")
    assert_same(float(slope(net, X, Y)), ours["val/slope"])
