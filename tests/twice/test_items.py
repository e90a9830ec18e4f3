"""Items: means over what a Task declares, sums, terms, several losses, losses of the model."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.engine.losses.base import LossModule
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

G = torch.Generator().manual_seed(11)
N = 37
X = torch.randn(N, 6, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (N, 6), generator=G)
Y[torch.rand(N, 6, generator=G) < 0.5] = -100
Y[4:8] = -100  # a micro-batch without items
Y[22:33] = -100  # a batch without items
WEIGHT = torch.rand(N, generator=G, dtype=torch.float64) * (torch.arange(N) % 3 > 0)
NUMBERS = X.mean(1)[:, :2].sin()


def body() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


class Tagger(nn.Module):
    """Logits (samples, classes, positions)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = body()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).transpose(1, 2)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.3)


def tagger_by_hand(
    net: nn.Module, smoothing: float = 0.0, weight: Tensor | None = None
) -> list[Any]:
    """Train two epochs with batches of 11; a batch without items is left out, as NaN."""
    optimizer, found = sgd(net), []
    for _ in range(2):
        for x, y in in_batches(11, X, Y):
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y, weight, label_smoothing=smoothing)
            if (y != -100).any():
                loss.backward()
                optimizer.step()
            found.append(loss.item())
    return [found, weights(net)]


def run_task(task: surestep.Task, micro: int = 4, **options: Any) -> list[Any]:
    """Train two epochs with batches of 11 in micro-batches; return losses and weights."""
    config = plain_config(
        epochs=2, batch_size=11, micro_batch_size=micro, optim={"lr": 0.3}, **options
    )
    session = prepare(task, config)
    return [[float(result.loss) for result in session.steps()], weights(session.model)]


def test_mean_over_tokens_that_are_declared_equals_one_full_batch() -> None:
    plain = tagger_by_hand(Tagger(), 0.1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    assert_same(plain, run_task(surestep.Task(Tagger(), loss, items="tokens", train=(X, Y))))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_torch_cross_entropy_with_class_weights_equals_one_full_batch(smoothing: float) -> None:
    weight = torch.tensor([0.2, 3.0, 1.0], dtype=torch.float64)
    plain = tagger_by_hand(Tagger(), smoothing, weight)
    loss = nn.CrossEntropyLoss(weight, label_smoothing=smoothing)
    assert_same(plain, run_task(surestep.Task(Tagger(), loss, train=(X, Y))))


def test_functions_of_torch_equal_one_full_batch() -> None:
    assert_same(
        tagger_by_hand(Tagger()),
        run_task(surestep.Task(Tagger(), functional.cross_entropy, train=(X, Y))),
    )


def test_mean_over_sample_weights_of_the_batch_equals_one_full_batch() -> None:
    def loss(outputs: Tensor, targets: Any) -> Tensor:
        wanted, weight = targets
        return (weight[:, None] * (outputs - wanted) ** 2).sum() / weight.sum()

    def net() -> nn.Module:
        torch.manual_seed(3)
        return nn.Linear(4, 2).double()

    plain_net, x = net(), X[:, 0]
    optimizer, found = sgd(plain_net), []
    for _ in range(2):
        for batch in in_batches(11, x, NUMBERS, WEIGHT):
            optimizer.zero_grad()
            value = loss(plain_net(batch[0]), batch[1:])
            value.backward()
            optimizer.step()
            found.append(value.item())
    plain = [found, weights(plain_net)]

    task = surestep.Task(
        net(),
        loss,
        items=lambda batch: float(batch[2].sum()),
        inputs=lambda batch: (batch[0], tuple(batch[1:])),
        train=(x, NUMBERS, WEIGHT),
        val=(x[:29], NUMBERS[:29], WEIGHT[:29]),
    )
    for micro in (11, 4, 1):
        again = surestep.Task(**{**vars(task), "model": net()})
        assert_same(plain, run_task(again, micro))
    session = prepare(task, plain_config(max_steps=1, batch_size=11, validation={"batch_size": 2}))
    with torch.no_grad():
        whole = loss(task.model(x[:29]), (NUMBERS[:29], WEIGHT[:29]))  # type: ignore[operator]
    assert_same(float(whole), session.evaluate()["val/loss"])


def test_sum_over_samples_is_not_divided_and_validated_per_sample() -> None:
    def elbo(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum() + outputs.abs().sum()

    torch.manual_seed(3)
    net = nn.Linear(4, 2).double()
    ours_net = copy.deepcopy(net)
    optimizer, found, x = torch.optim.SGD(net.parameters(), lr=0.01), [], X[:, 0]
    for _ in range(2):
        for a, b in in_batches(11, x, NUMBERS):
            optimizer.zero_grad()
            value = elbo(net(a), b)
            value.backward()
            optimizer.step()
            found.append(value.item())
    with torch.no_grad():
        plain = [found, weights(net), float(elbo(net(x[:29]), NUMBERS[:29]) / 29)]

    task = surestep.Task(
        ours_net, elbo, reduction="sum", train=(x, NUMBERS), val=(x[:29], NUMBERS[:29])
    )
    config = plain_config(
        epochs=2,
        batch_size=11,
        micro_batch_size=3,
        optim={"lr": 0.01},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    losses = [float(result.loss) for result in session.steps()]
    assert_same(plain, [losses, weights(session.model), session.evaluate()["val/loss"]])


def logged_by_step(run: surestep.Run, name: str) -> list[Any]:
    """Return an entry of the log points for each step."""
    return [
        value
        for event in run.events()
        if event["event"] == "steps"
        for value in event["logged"].get(name, [None] * len(event["loss"]))
    ]


def test_named_terms_are_means_over_the_batch() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept = targets != -100
        entropy = functional.cross_entropy(outputs, targets)
        return {"entropy": entropy, "size": 0.1 * outputs.movedim(1, 2)[kept].square().mean()}

    net, found = Tagger(), []
    optimizer = sgd(net)
    for _ in range(2):
        for x, y in in_batches(11, X, Y):
            if (y == -100).all():
                found.append([None, None])
                continue
            optimizer.zero_grad()
            terms = loss(net(x), y)
            sum(terms.values()).backward()  # type: ignore[union-attr]
            optimizer.step()
            found.append([term.item() for term in terms.values()])

    task = surestep.Task(Tagger(), loss, items="tokens", train=(X, Y))
    config = plain_config(
        epochs=2, batch_size=11, micro_batch_size=4, optim={"lr": 0.3}, logging={"every": "3 steps"}
    )
    session = prepare(task, config)
    for _ in session.steps():
        pass
    assert_same(weights(net), weights(session.model))
    names = ("entropy", "size")
    for index, name in enumerate(names):
        assert_same([row[index] for row in found], logged_by_step(session.run, name))


class Heads(nn.Module):
    """Two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.numbers = Tagger(), nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"tags": self.tags(x), "numbers": self.numbers(x.mean(1)), "other": x}


@pytest.mark.parametrize("micro", [11, 4, 1])
def test_several_losses_are_means_over_their_own_items(micro: int) -> None:
    torch.manual_seed(5)
    net = Heads()
    ours_net = copy.deepcopy(net)
    optimizer, found = sgd(net), []
    for _ in range(2):
        for x, tags, numbers in in_batches(11, X, Y, NUMBERS):
            optimizer.zero_grad()
            outputs = net(x)
            loss = 0.25 * functional.l1_loss(outputs["numbers"], numbers)
            if (tags != -100).any():
                loss = loss + 2.0 * functional.cross_entropy(outputs["tags"], tags)
            loss.backward()
            optimizer.step()
            found.append(loss.item())

    task = surestep.Task(
        ours_net,
        {"tags": nn.CrossEntropyLoss(), "numbers": "mae"},
        loss_weights={"tags": 2.0, "numbers": 0.25},
        train={"x": X, "tags": Y, "numbers": NUMBERS},
        val={"half": {"x": X[:19], "tags": Y[:19], "numbers": NUMBERS[:19]}},
    )
    config = plain_config(
        epochs=2,
        batch_size=11,
        micro_batch_size=micro,
        optim={"lr": 0.3},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    losses = [float(result.loss) for result in session.steps()]
    assert_same([found, weights(net)], [losses, weights(session.model)])
    with torch.no_grad():
        outputs = net(X[:19])
    parts = [
        float(functional.cross_entropy(outputs["tags"], Y[:19])),
        float(functional.l1_loss(outputs["numbers"], NUMBERS[:19])),
    ]
    ours = session.evaluate()
    assert_same(
        [2 * parts[0] + 0.25 * parts[1], *parts],
        [ours[f"half/{name}"] for name in ("loss", "loss_tags", "loss_numbers")],
    )


def test_several_losses_with_own_items_and_a_sum_equal_one_full_batch() -> None:
    def weighted(outputs: Tensor, targets: Any) -> Tensor:
        return (targets[1][:, None] * (outputs - targets[0]) ** 2).sum() / targets[1].sum()

    def size(outputs: Tensor, targets: Any) -> Tensor:
        return 0.01 * outputs.square().sum()

    def total(outputs: Any, numbers: Tensor, weight: Tensor) -> Tensor:
        return weighted(outputs["numbers"], (numbers, weight)) + 0.5 * size(outputs["tags"], None)

    torch.manual_seed(5)
    net = Heads()
    ours_net = copy.deepcopy(net)
    optimizer, found = sgd(net), []
    for _ in range(2):
        for x, numbers, weight in in_batches(11, X, NUMBERS, WEIGHT):
            optimizer.zero_grad()
            loss = total(net(x), numbers, weight)
            loss.backward()
            optimizer.step()
            found.append(loss.item())

    task = surestep.Task(
        ours_net,
        {"numbers": weighted, "tags": size},
        loss_weights={"tags": 0.5},
        items={"numbers": lambda batch: float(batch[2].sum())},
        reduction={"tags": "sum"},
        inputs=lambda batch: (batch[0], {"numbers": tuple(batch[1:]), "tags": batch[1]}),
        train=(X, NUMBERS, WEIGHT),
    )
    assert_same([found, weights(net)], run_task(task))


class WithLoss(nn.Module):
    """Computes its own loss, as models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = self.tagger(x)
        return SimpleNamespace(loss=functional.cross_entropy(logits, labels), logits=logits)


def test_loss_of_the_model_is_a_mean_over_labels_that_are_not_ignored() -> None:
    plain_net = WithLoss()
    plain = tagger_by_hand(plain_net.tagger)
    with torch.no_grad():
        outputs = plain_net(X[:19], Y[:19])
    kept = Y[:19] != -100
    accuracy = (outputs.logits.argmax(1) == Y[:19])[kept].double().mean()

    def right(logits: Tensor, targets: Tensor) -> Tensor:
        kept = targets != -100
        return (logits.argmax(1) == targets)[kept].double().mean()

    net = WithLoss()
    task = surestep.Task(
        net,
        "model",
        train={"x": X, "labels": Y},
        val={"own": {"x": X[:19], "labels": Y[:19]}},
        metrics={"accuracy": right},
    )
    config = plain_config(
        epochs=2,
        batch_size=11,
        micro_batch_size=4,
        optim={"lr": 0.3},
        validation={"batch_size": 3},
    )
    session = prepare(task, config)
    losses = [float(result.loss) for result in session.steps()]
    ours = session.evaluate()
    assert_same(plain, [losses, weights(net.tagger)])
    assert_same([float(outputs.loss), float(accuracy)], [ours["own/loss"], ours["own/accuracy"]])


class Detector(nn.Module):
    """Returns losses in train mode and predictions in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 2).double()

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        found = self.linear(x)
        if not self.training:
            return found
        assert targets is not None
        return {"box": (found - targets).abs().mean(), "rest": 0.3 * found.square().mean()}


def test_losses_in_training_are_means_over_samples_and_metrics_are_measured() -> None:
    net, x = Detector(), X[:, 0]
    optimizer, found = sgd(net), []
    for _ in range(2):
        for a, b in in_batches(11, x, NUMBERS):
            optimizer.zero_grad()
            loss = sum(net(a, b).values())
            loss.backward()  # type: ignore[union-attr]
            optimizer.step()
            found.append(loss.item())  # type: ignore[union-attr]
    task = surestep.Task(
        Detector(),
        "model in training",
        items=lambda batch: len(batch[0]),
        train=(x, NUMBERS),
        val=(x[:19], NUMBERS[:19]),
        metrics={"mae": lambda o, t: (o - t).abs().mean()},
    )
    config = plain_config(
        epochs=2,
        batch_size=11,
        micro_batch_size=4,
        optim={"lr": 0.3},
        validation={"batch_size": 3, "metric": "mae", "mode": "min"},
    )
    session = prepare(task, config)
    losses = [float(result.loss) for result in session.steps()]
    net.eval()
    with torch.no_grad():
        mae = float((net(x[:19]) - NUMBERS[:19]).abs().mean())
    assert_same([found, weights(net)], [losses, weights(session.model)])
    assert_same({"val/mae": mae}, session.evaluate())


def test_teacher_goes_with_a_function_and_is_not_trained() -> None:
    torch.manual_seed(8)
    teacher = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)).double()
    before, x = weights(teacher), X[:, 0]

    def loss(outputs: Tensor, targets: Any) -> Tensor:
        wanted, taught = targets
        return 0.7 * (outputs - wanted).square().mean() + 0.3 * (outputs - taught).abs().mean()

    torch.manual_seed(3)
    net = nn.Linear(4, 2).double()
    ours_net = copy.deepcopy(net)
    optimizer, found = sgd(net), []
    still = copy.deepcopy(teacher).eval()
    for _ in range(2):
        for a, b in in_batches(11, x, NUMBERS):
            optimizer.zero_grad()
            with torch.no_grad():
                taught = still(a)
            value = loss(net(a), (b, taught))
            value.backward()
            optimizer.step()
            found.append(value.item())
    task = surestep.Task(ours_net, loss, teacher=teacher, train=(x, NUMBERS))
    assert_same([found, weights(net)], run_task(task))
    assert_same(before, weights(teacher), exact=True)


def test_own_loss_module_divides_by_what_it_counts() -> None:
    class Weighted(LossModule):
        name = "weighted"
        doc = surestep.losses.mse().doc

        def total(self, outputs: Tensor, targets: Any) -> Tensor:
            numbers, weight = targets
            return (weight[:, None] * (outputs - numbers).abs()).sum()

        def items(self, batch: Any, targets: Any) -> float:
            return float(targets[1].sum())

    torch.manual_seed(3)
    net, x = nn.Linear(4, 2).double(), X[:, 0]
    ours_net = copy.deepcopy(net)
    optimizer, found = sgd(net), []
    for _ in range(2):
        for a, b, weight in in_batches(11, x, NUMBERS, WEIGHT):
            optimizer.zero_grad()
            value = (weight[:, None] * (net(a) - b).abs()).sum() / weight.sum()
            value.backward()
            optimizer.step()
            found.append(value.item())
    task = surestep.Task(
        ours_net,
        Weighted(),
        inputs=lambda batch: (batch[0], tuple(batch[1:])),
        train=(x, NUMBERS, WEIGHT),
    )
    assert_same([found, weights(net)], run_task(task))


def test_ready_batches_of_different_sizes_are_one_batch_of_all_their_samples() -> None:
    sizes, x = [1, 5, 2, 7, 3, 4], X[:, 0]
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    spans = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    data = [(x[span], NUMBERS[span]) for span in spans]

    torch.manual_seed(3)
    net = nn.Linear(4, 2).double()
    ours_net = copy.deepcopy(net)
    optimizer, found = sgd(net), []
    for first in range(0, len(data), 4):
        a, b = (torch.cat(parts) for parts in zip(*data[first : first + 4], strict=True))
        optimizer.zero_grad()
        value = functional.mse_loss(net(a), b)
        value.backward()
        optimizer.step()
        found.append(value.item())
    with torch.no_grad():
        a, b = x[: ends[-1]], NUMBERS[: ends[-1]]
        means = [float(functional.mse_loss(net(a), b)), float((net(a) - b).abs().mean())]
    task = surestep.Task(
        ours_net,
        nn.MSELoss(),
        batched=True,
        train=data,
        val=data,
        metrics={"mae": lambda o, t: (o - t).abs().mean()},
    )
    session = prepare(task, plain_config(epochs=1, batch_size=4, optim={"lr": 0.3}))
    losses = [float(result.loss) for result in session.steps()]
    ours = session.evaluate()
    assert_same([found, weights(net)], [losses, weights(session.model)])
    assert_same(means, [ours["val/loss"], ours["val/mae"]])
