"""Losses again: torch's own with all their options, mixing, changed options, terms and teachers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.engine.losses.base import LossModule
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights
from tests.twice.shaped import (
    LABELS,
    NUMBERS,
    PER_LABEL,
    SIGNS,
    G,
    Mean,
    N,
    Shaped,
    X,
    plain_training,
)


def check(net: nn.Module, loss: Any, mean: Mean, targets: Tensor, **options: Any) -> None:
    """Compare with micro-batches of 3, and an evaluation in batches of 4."""
    start = copy.deepcopy(net)
    plain = plain_training(net, mean, X, targets)
    for micro in (7, 3, 1):
        ours = copy.deepcopy(start)
        task = surestep.Task(ours, loss, train=(X, targets), val=(X, targets), **options)
        config = plain_config(
            epochs=2, batch_size=7, micro_batch_size=micro, validation={"batch_size": 4}
        )
        session = prepare(task, config)
        values = [float(result.loss) for result in session.steps()]
        assert_same(plain, [values, weights(ours), session.evaluate()["val/loss"]])


def padded_labels() -> Tensor:
    """Return labels (N, 4) of MultiLabelMarginLoss, which end at -1."""
    rows = torch.stack([torch.randperm(4, generator=G) for _ in range(N)])
    rows[::2, 1] = -1
    rows[1::3, 3] = -1
    return rows


log_softmax = lambda x: x.log_softmax(-1)  # noqa: E731
TORCH_LOSSES: dict[str, Any] = {
    "smooth_l1": (lambda: Shaped(3), nn.SmoothL1Loss(beta=0.3), NUMBERS),
    "bce_weighted": (
        lambda: Shaped(3, last=torch.sigmoid),
        nn.BCELoss(weight=PER_LABEL),
        NUMBERS,
    ),
    "bce_logits": (
        lambda: Shaped(3),
        nn.BCEWithLogitsLoss(weight=PER_LABEL, pos_weight=PER_LABEL.flip(0)),
        NUMBERS,
    ),
    "poisson": (lambda: Shaped(3), nn.PoissonNLLLoss(full=True), (NUMBERS * 7).round()),
    "poisson_rates": (
        lambda: Shaped(3, last=torch.exp),
        nn.PoissonNLLLoss(log_input=False),
        NUMBERS,
    ),
    "soft_margin": (lambda: Shaped(), nn.SoftMarginLoss(), SIGNS),
    "hinge": (lambda: Shaped(last=torch.abs), nn.HingeEmbeddingLoss(margin=2.0), SIGNS),
    "multi_margin": (
        lambda: Shaped(3),
        nn.MultiMarginLoss(p=2, margin=0.6, weight=PER_LABEL),
        LABELS.clamp(min=0)[:, 0],
    ),
    "multilabel_margin": (lambda: Shaped(4), nn.MultiLabelMarginLoss(), padded_labels()),
    "multilabel_soft_margin": (
        lambda: Shaped(3),
        nn.MultiLabelSoftMarginLoss(weight=PER_LABEL),
        NUMBERS.round(),
    ),
    "kl_mean": (
        lambda: Shaped(2, 3, last=log_softmax),
        nn.KLDivLoss(reduction="mean"),
        NUMBERS.softmax(1)[:, None].expand(N, 2, 3).contiguous(),
    ),
    "kl_batchmean": (
        lambda: Shaped(3, last=log_softmax),
        nn.KLDivLoss(reduction="batchmean", log_target=True),
        NUMBERS.log_softmax(1),
    ),
    "nll_weighted": (
        lambda: Shaped(3, 5, last=lambda x: x.log_softmax(2)),
        nn.NLLLoss(weight=PER_LABEL, ignore_index=-100),
        LABELS,
    ),
    "cross_entropy_sum": (
        lambda: Shaped(3, 5),
        nn.CrossEntropyLoss(weight=PER_LABEL, label_smoothing=0.1),
        LABELS,
    ),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("name", TORCH_LOSSES)
def test_losses_of_torch_with_options_equal_one_full_batch(name: str) -> None:
    make, loss, targets = TORCH_LOSSES[name]
    check(make(), loss, copy.deepcopy(loss), targets)


@pytest.mark.parametrize(
    "loss",
    [
        nn.MarginRankingLoss(margin=0.4),
        nn.CosineEmbeddingLoss(margin=0.2),
        nn.GaussianNLLLoss(full=True, eps=1e-3),
        nn.TripletMarginLoss(margin=0.5, p=1, swap=True),
        nn.TripletMarginWithDistanceLoss(
            distance_function=lambda a, b: (a - b).square().mean(-1), margin=0.3, swap=True
        ),
    ],
)
def test_losses_of_torch_of_several_outputs_equal_one_full_batch(loss: Any) -> None:
    triplet = isinstance(loss, (nn.TripletMarginLoss, nn.TripletMarginWithDistanceLoss))
    rank = isinstance(loss, nn.MarginRankingLoss)
    gauss = isinstance(loss, nn.GaussianNLLLoss)
    last = (lambda x: x.square() + 1) if gauss else None
    net = Shaped(*(() if rank else (3,)), parts=3 if triplet else 2, last=last)

    def mean(outputs: Any, targets: Tensor) -> Tensor:
        if triplet:
            return loss(*outputs)
        if gauss:
            return loss(outputs[0], targets, outputs[1])
        return loss(*outputs, targets)

    check(net, loss, mean, NUMBERS if gauss else SIGNS)


FUNCTIONS: dict[str, Any] = {
    "nll_loss": (lambda: Shaped(3, 5, last=lambda x: x.log_softmax(2)), LABELS),
    "huber_loss": (lambda: Shaped(3), NUMBERS),
    "smooth_l1_loss": (lambda: Shaped(3), NUMBERS),
    "kl_div": (lambda: Shaped(3, last=log_softmax), NUMBERS.softmax(1)),
    "soft_margin_loss": (lambda: Shaped(), SIGNS),
    "hinge_embedding_loss": (lambda: Shaped(last=torch.abs), SIGNS),
    "poisson_nll_loss": (lambda: Shaped(3), NUMBERS),
    "multi_margin_loss": (lambda: Shaped(3), LABELS.clamp(min=0)[:, 1]),
    "binary_cross_entropy_with_logits": (lambda: Shaped(3), NUMBERS),
    "multilabel_soft_margin_loss": (lambda: Shaped(3), NUMBERS.round()),
}


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functional_losses_equal_one_full_batch(name: str) -> None:
    make, targets = FUNCTIONS[name]
    function = getattr(functional, name)
    check(make(), function, function, targets)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=PER_LABEL, reduction="sum"),
        nn.KLDivLoss(reduction="sum"),
        nn.GaussianNLLLoss(reduction="sum"),
    ],
)
def test_sums_of_torch_are_sums_and_validated_per_sample(loss: Any) -> None:
    classes = isinstance(loss, nn.CrossEntropyLoss)
    gauss = isinstance(loss, nn.GaussianNLLLoss)
    targets = LABELS if classes else NUMBERS.softmax(1)
    last = log_softmax if isinstance(loss, nn.KLDivLoss) else None
    last = (lambda x: x.square() + 1) if gauss else last
    net = Shaped(3, 5) if classes else Shaped(3, parts=1 + gauss, last=last)

    def total(outputs: Any, wanted: Tensor) -> Tensor:
        return loss(outputs[0], wanted, outputs[1]) if gauss else loss(outputs, wanted)

    ours = copy.deepcopy(net)
    plain = plain_training(net, total, X, targets, lr=0.01)
    plain[2] /= N
    task = surestep.Task(ours, loss, train=(X, targets), val=(X, targets))
    config = plain_config(
        epochs=2,
        batch_size=7,
        micro_batch_size=3,
        optim={"lr": 0.01},
        validation={"batch_size": 5},
    )
    session = prepare(task, config)
    values = [float(result.loss) for result in session.steps()]
    assert_same(plain, [values, weights(ours), session.evaluate()["val/loss"]])


@pytest.mark.parametrize("kind", ["torch", "unweighted", "surestep"])
def test_options_of_a_loss_that_are_changed_in_the_run_take_effect(kind: str) -> None:
    def criterion() -> Any:
        if kind == "unweighted":
            return nn.CrossEntropyLoss()
        if kind == "torch":
            return nn.CrossEntropyLoss(weight=PER_LABEL.clone(), label_smoothing=0.2)
        return surestep.losses.focal(gamma=2.0)

    def change(loss: Any, step: int) -> None:
        """Smooth less with each step, and weight the classes from a step on."""
        if kind == "unweighted":
            loss.weight = PER_LABEL if step in (2, 3, 4) else None
        elif kind == "torch":
            loss.label_smoothing = 0.2 / (1 + step)
            if step == 3:
                loss.weight = PER_LABEL.flip(0)
            if step == 5:
                loss.weight.mul_(torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64))
        else:
            loss.gamma = 2.0 / (1 + step)

    net, loss = Shaped(3, 5), criterion()
    ours, own = copy.deepcopy(net), criterion()
    optimizer, plain = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(2):
        for x, y in in_batches(7, X, LABELS):
            optimizer.zero_grad()
            value = loss(net(x), y)
            value.backward()
            optimizer.step()
            plain.append(value.item())
            change(loss, len(plain))
    task = surestep.Task(ours, own, train=(X, LABELS))
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=3))
    found = []
    for result in session.steps():
        found.append(float(result.loss))
        change(own, result.step)
    assert_same([plain, weights(net)], [found, weights(ours)])


def logged_by_step(run: surestep.Run, name: str) -> list[Any]:
    """Return an entry of the log points for each step."""
    return [
        value
        for event in run.events()
        if event["event"] == "steps"
        for value in event["logged"].get(name, [None] * len(event["loss"]))
    ]


def test_values_that_losses_and_models_log_are_means_over_the_items() -> None:
    class Logging(Shaped):
        def forward(self, x: Tensor) -> Any:
            surestep.log("input", x[:, 0].mean())
            return super().forward(x)

    def loss(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept = targets != -100
        entropy = functional.cross_entropy(outputs, targets)
        right = (outputs.argmax(1) == targets)[kept].double().mean()
        surestep.log("right", right)
        surestep.log("twice", entropy)
        surestep.log("twice", 3 * entropy)
        surestep.log("entropy", 2 * entropy)  # as a term is called
        return {"entropy": entropy, "size": 0.01 * outputs.movedim(1, 2)[kept].square().mean()}

    net = Logging(3, 5)
    ours = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    plain: dict[str, list[float]] = {}
    for x, y in in_batches(7, X, LABELS):
        kept = y != -100
        counts = kept.sum(1)
        outputs = Shaped.forward(net, x)
        entropy = functional.cross_entropy(outputs, y)
        size = 0.01 * outputs.movedim(1, 2)[kept].square().mean()
        right = (outputs.argmax(1) == y)[kept].double().mean()
        # The model's is a mean over the samples of a micro-batch, weighted by its tokens.
        spans = [slice(i, i + 3) for i in range(0, len(x), 3)]
        parts = [x[s, 0].mean() * counts[s].sum() for s in spans if counts[s].sum()]
        values = {
            "input": sum(parts) / counts.sum(),
            "right": right,
            "twice": 2 * entropy,
            "entropy": entropy,
            "logged_entropy": 2 * entropy,
            "size": size,
        }
        optimizer.zero_grad()
        (entropy + size).backward()
        optimizer.step()
        for name, value in values.items():
            plain.setdefault(name, []).append(value.item())
    task = surestep.Task(ours, loss, items="tokens", train=(X, LABELS))
    session = prepare(task, plain_config(epochs=1, batch_size=7, micro_batch_size=3))
    for _ in session.steps():
        pass
    session.close()
    assert_same(weights(net), weights(ours))
    assert_same(plain, {name: logged_by_step(session.run, name) for name in plain})


def test_penalty_of_the_weights_in_a_loss_counts_once() -> None:
    net = Shaped(3)
    ours = copy.deepcopy(net)

    def penalized(model: nn.Module) -> Mean:
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            penalty = sum(weight.square().sum() for weight in model.parameters())
            return functional.mse_loss(outputs, targets) + 0.05 * penalty

        return loss

    plain = plain_training(net, penalized(net), X, NUMBERS)
    task = surestep.Task(ours, penalized(ours), train=(X, NUMBERS), val=(X, NUMBERS))
    config = plain_config(epochs=2, batch_size=7, micro_batch_size=3, validation={"batch_size": 4})
    session = prepare(task, config)
    values = [float(result.loss) for result in session.steps()]
    assert_same(plain, [values, weights(ours), session.evaluate()["val/loss"]])


def test_weights_of_a_loss_without_items_do_not_change_in_that_step() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tags, self.numbers = Shaped(3, 5), Shaped(3)

        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"tags": self.tags(x), "numbers": self.numbers(x)}

    tags = LABELS.clone()
    tags[7:14] = -100
    tags[21:28] = -100
    net = Heads()
    ours = copy.deepcopy(net)
    decayed = [weight for weight in net.parameters() if weight.dim() > 1]
    biases = [weight for weight in net.parameters() if weight.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.3}, {"params": biases, "weight_decay": 0.0}], lr=0.05
    )
    plain = []
    for _ in range(2):
        for x, y, numbers in in_batches(7, X, tags, NUMBERS):
            optimizer.zero_grad()
            outputs = net(x)
            value = 0.5 * functional.mse_loss(outputs["numbers"], numbers)
            if (y != -100).any():
                value = value + 3 * functional.cross_entropy(outputs["tags"], y, weight=PER_LABEL)
            value.backward()
            optimizer.step()
            plain.append(value.item())
    task = surestep.Task(
        ours,
        {"tags": surestep.losses.multiclass(weight=PER_LABEL), "numbers": nn.MSELoss()},
        loss_weights={"tags": 3, "numbers": 0.5},
        train={"x": X, "tags": tags, "numbers": NUMBERS},
    )
    config = plain_config(
        epochs=2,
        batch_size=7,
        micro_batch_size=2,
        optim={"name": "adamw", "lr": 0.05, "weight_decay": 0.3, "momentum": surestep.NOT_SET},
    )
    session = prepare(task, config)
    found = [float(result.loss) for result in session.steps()]
    assert_same([plain, weights(net)], [found, weights(ours)])


class Kept(LossModule):
    """Two terms over the targets that are not ignored, with an option of the run."""

    name = "kept"
    doc = surestep.losses.mse().doc
    over = "kept"

    def __init__(self, share: float) -> None:
        super().__init__(share=share)
        self.share, self.ignore_index = share, -100

    def total(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept = targets != self.ignore_index
        entropy = functional.cross_entropy(outputs, targets, reduction="sum")
        return {
            "entropy": entropy,
            "spread": self.share * (outputs.std(1) * kept).sum(),
        }


def test_own_loss_module_with_terms_is_a_mean_over_targets_that_are_kept() -> None:
    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        kept = targets != -100
        return functional.cross_entropy(outputs, targets) + 0.3 * outputs.std(1)[kept].mean()

    check(Shaped(3, 5), Kept(0.3), mean, LABELS)


class Centered(nn.Module):
    """A mean with a center that each call in training moves, and that evaluations leave."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3, dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = (outputs - self.center - targets).square().mean()
        with torch.no_grad():
            self.center.mul_(0.9).add_(outputs.mean(0), alpha=0.1)
        return loss


def test_loss_with_a_moving_center_continues_after_a_resume_and_evaluations() -> None:
    net, criterion = Shaped(3), Centered()
    optimizer, plain = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(2):
        for x, y in in_batches(7, X, NUMBERS):
            optimizer.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            optimizer.step()
            plain.append(loss.item())
    found = []
    for stop in (2, 4, 7, 100):
        ours, own = Shaped(3), Centered()
        task = surestep.Task(
            ours, own, loss_is_separable=False, train=(X, NUMBERS), val=(X, NUMBERS)
        )
        with surestep.prepare(task, plain_config(epochs=2, batch_size=7), run="run") as session:
            for result in session.steps():
                found.append(float(result.loss))
                session.evaluate()
                if result.step == stop:
                    session.save()
                    break
    assert_same([plain, weights(net), criterion.center], [found, weights(ours), own.center])
