"""Batches again: changed by a transform or between steps, own ones, images, excluded samples."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import surestep
from tests.twice.compare import (
    assert_same,
    in_batches,
    plain_config,
    prepare,
    seed_all,
    seed_of,
    weights,
)

G = torch.Generator().manual_seed(43)
X = torch.randn(47, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (47,), generator=G)
Z = torch.randn(47, 2, generator=G, dtype=torch.float64)


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)).double()


def by_hand(model: nn.Module, batches: Any, loss: Callable[..., Tensor]) -> list[Any]:
    """Take a step on each batch; return the losses and the weights."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x, y in batches:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return [losses, weights(model)]


def balanced(rows: list[int]) -> nn.Module:
    """Return cross-entropy with the balanced weights of these samples."""
    counts = torch.bincount(Y[rows], minlength=3).double()
    return nn.CrossEntropyLoss(weight=counts.sum() / (3 * counts))


@pytest.mark.parametrize("excluded", [True, False])
def test_balanced_weights_are_those_of_the_samples_that_are_trained_on(excluded: bool) -> None:
    rows = [i for i in range(47) if i not in (0, 5, 6, 7, 40)] if excluded else [*range(3, 40, 2)]
    plain = by_hand(net(), in_batches(7, X[rows], Y[rows]), balanced(rows))
    model = net()
    data: Any = (X, Y) if excluded else DataLoader(Subset(TensorDataset(X, Y), rows), batch_size=7)
    more: dict[str, Any] = (
        {"exclude_samples": [0, 5, 6, 7, 40], "batch_size": 7} if excluded else {}
    )
    task = surestep.Task(model, surestep.losses.multiclass(weight="balanced"), train=data)
    session = prepare(task, plain_config(epochs=1, micro_batch_size=3, **more))
    assert_same(plain, [[float(result.loss) for result in session.steps()], weights(model)])


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = net(3), net(2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"a": self.a(x), "b": self.b(x)}


def test_transform_of_several_targets_counts_the_items_of_each_again() -> None:
    def change(inputs: Any, targets: Any) -> Any:
        labels = targets["a"].clone()
        labels[::3] = -100
        return {"x": inputs["x"] * 2}, {"a": labels, "b": targets["b"] + 1}

    def total(outputs: Any, targets: Any) -> Tensor:
        value = F.mse_loss(outputs["b"], targets["b"])
        if (targets["a"] != -100).any():
            value = value + 2 * F.cross_entropy(outputs["a"], targets["a"])
        return value

    model = Heads()
    ours = copy.deepcopy(model)
    batches = [change({"x": x}, {"a": y, "b": z}) for x, y, z in in_batches(7, X, Y, Z)]
    plain = by_hand(model, [(inputs["x"], targets) for inputs, targets in batches], total)
    task = surestep.Task(
        ours,
        {"a": nn.CrossEntropyLoss(), "b": "mse"},
        loss_weights={"a": 2.0},
        train={"x": X, "a": Y, "b": Z},
        batch_transform=change,
    )
    session = prepare(task, plain_config(epochs=1, batch_size=7, micro_batch_size=2))
    assert_same(plain, [[float(result.loss) for result in session.steps()], weights(ours)])


@pytest.mark.parametrize("micro", [7, 3])
def test_transform_in_place_changes_the_batch_and_not_the_data(micro: int) -> None:
    def change(x: Tensor, y: Tensor) -> Any:
        x.mul_(2)
        y[::2] = -100
        return x, y

    batches = [change(x.clone(), y.clone()) for x, y in in_batches(7, X, Y)] * 2
    plain = by_hand(net(), [batch for batch in batches if (batch[1] >= 0).any()], F.cross_entropy)
    model, data = net(), (X.clone(), Y.clone())
    task = surestep.Task(model, nn.CrossEntropyLoss(), train=data, batch_transform=change)
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=micro))
    ours = [float(result.loss) for result in session.steps() if bool(result.took_step)]
    assert_same(plain, [ours, weights(model)])
    assert_same([X, Y], data, exact=True)


SPANS = [[(0, 5), (5, 6), (6, 13)], [(20, 21)], [(30, 33), (33, 47)]]


def rows_of(spans: list[tuple[int, int]]) -> list[int]:
    return [row for first, end in spans for row in range(first, end)]


def test_own_batches_of_several_losses_are_means_over_the_items_of_each() -> None:
    labels = Y.clone()
    labels[5], labels[31:33] = -100, -100

    def total(outputs: Any, targets: Any) -> Tensor:
        return F.cross_entropy(outputs["a"], targets[0]) + F.l1_loss(outputs["b"], targets[1])

    model = Heads()
    ours = copy.deepcopy(model)
    batches = [(X[rows], (labels[rows], Z[rows])) for rows in map(rows_of, SPANS)]
    plain = by_hand(model, batches, total)
    task = surestep.Task(
        ours, {"a": nn.CrossEntropyLoss(), "b": "mae"}, train={"x": X, "a": labels, "b": Z}
    )
    session = prepare(task, plain_config(epochs=1, batch_size=7))
    found = []
    for spans in SPANS:
        parts = [{"x": X[a:b], "a": labels[a:b], "b": Z[a:b]} for a, b in spans]
        found.append(float(session.train_step(parts).loss))
    assert_same(plain, [found, weights(ours)])


def test_noise_of_own_batches_of_a_manual_step_is_that_of_the_global_batch() -> None:
    def noise(step: int, call: int, *size: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of("noise", 0, step, 0, call))
        return torch.randn(size, generator=generator).double()

    batches = []
    for number, rows in enumerate(map(rows_of, SPANS)):
        moved = X[rows] + noise(number, 0, len(rows), 4), Z[rows] + noise(number, 1, len(rows), 2)
        batches.append(moved)
    plain = by_hand(net(2), batches, F.mse_loss)

    def step(manual_step: surestep.ManualStep) -> None:
        for micro in manual_step.micro_batches():
            x, z = micro.args
            x = x + manual_step.randn(micro, 4).double()
            z = z + manual_step.randn(micro, 2).double()
            manual_step.backward(F.mse_loss(manual_step.model(x), z), micro)
        manual_step.step("model")

    model = net(2)
    task = surestep.Task(model, train=(X, Z), step=step)
    session = prepare(task, plain_config(epochs=1, batch_size=7))
    found = [
        float(session.train_step([(X[a:b], Z[a:b]) for a, b in spans]).loss) for spans in SPANS
    ]
    assert_same(plain, [found, weights(model)])


def test_data_that_is_changed_after_a_step_is_read_by_the_next() -> None:
    model, later = net(2), Z.clone()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        for first in range(0, 47, 7):
            optimizer.zero_grad()
            part = slice(first, first + 7)
            loss = F.mse_loss(model(X[part]), later[part].clone())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            later.mul_(0.9)
    ours, data, found = net(2), (X.clone(), Z.clone()), []
    task = surestep.Task(ours, nn.MSELoss(), train=data)
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=3))
    for result in session.steps():
        found.append(float(result.loss))
        data[1].mul_(0.9)
    assert_same([losses, weights(model)], [found, weights(ours)])


def test_weights_of_a_sampler_that_are_changed_count_in_the_next_epoch() -> None:
    def order(chance: Tensor, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of("order", 0, epoch))
        return torch.multinomial(chance, 23, True, generator=generator)

    chance = torch.ones(47, dtype=torch.float64)
    later = chance.clone()
    later[::2] = 0
    orders = order(chance, 0), order(later, 1)
    batches = [batch for rows in orders for batch in in_batches(7, X[rows], Z[rows])]
    plain = by_hand(net(2), batches, F.mse_loss)
    sampler, model, found = WeightedRandomSampler(chance.clone(), 23), net(2), []
    loader = DataLoader(TensorDataset(X, Z), batch_size=7, sampler=sampler)
    task = surestep.Task(model, nn.MSELoss(), train=loader)
    session = prepare(task, plain_config(epochs=2, data={"shuffle": surestep.NOT_SET}))
    for result in session.steps():
        found.append(float(result.loss))
        if result.step == 4:
            sampler.weights[::2] = 0
    assert_same(plain, [found, weights(model)])


SIZES = [3, 1, 5, 2, 7, 4, 1, 6]
ENDS = [sum(SIZES[: i + 1]) for i in range(8)]


class Ready(IterableDataset[Any]):
    """Ready batches of different sizes; each worker has its own."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(worker, 8, workers):
            rows = slice(ENDS[number] - SIZES[number], ENDS[number])
            yield {"input": X[rows], "target": Z[rows]}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net(2)

    def forward(self, input: Tensor) -> Tensor:
        return self.net(input)


@pytest.mark.filterwarnings("ignore:batch_size=3 takes 3 batches")
@pytest.mark.parametrize("workers", [1, 2])
def test_ready_batches_of_workers_make_steps_that_weight_items_equally(workers: int) -> None:
    groups = [[0, 1, 2], [3, 4, 5], [6, 7]] if workers == 1 else [[0, 2, 4], [1, 3, 5], [6, 7]]
    batches = []
    for group in groups * 2:
        rows = rows_of([(ENDS[number] - SIZES[number], ENDS[number]) for number in group])
        batches.append((X[rows], Z[rows]))
    plain = by_hand(net(2), batches, F.mse_loss)
    losses, metrics = [], {"mae": lambda outputs, targets: (outputs - targets).abs().mean()}
    options = plain_config(max_steps=6, batch_size=3, data={"num_workers": workers})
    for stop in (2, 4, 100):
        model = Named()
        task = surestep.Task(
            model, nn.MSELoss(), train=Ready(), val=Ready(), batched=True, metrics=metrics
        )
        with surestep.prepare(task, options, run="run") as session:
            for result in session.steps():
                losses.append(float(result.loss))
                values = session.evaluate()
                if result.step == stop:
                    session.save()
                    break
    assert_same(plain, [losses, weights(model.net)])
    with torch.no_grad():
        outputs = model(X[:29])
    plain_values = {
        "val/loss": F.mse_loss(outputs, Z[:29]).item(),
        "val/mae": (outputs - Z[:29]).abs().mean().item(),
    }
    assert_same(plain_values, values)


def test_resumed_stream_is_mixed_as_the_step_says() -> None:
    def rows() -> Iterator[Any]:
        yield from zip(X, Y, strict=True)

    model, number = net(), 0
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        for x, y in in_batches(7, X, Y):
            seed_all("transform", 0, number)
            share, partner = random.betavariate(0.5, 0.5), torch.randperm(len(x))
            optimizer.zero_grad()
            outputs = model(share * x + (1 - share) * x[partner])
            loss = share * F.cross_entropy(outputs, y)
            loss = loss + (1 - share) * F.cross_entropy(outputs, y[partner])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            number += 1
    found, mixup = [], surestep.batch_transforms.mixup(0.5)
    for stop in (3, 8, 100):
        ours = net()
        task = surestep.Task(ours, nn.CrossEntropyLoss(), train=rows, batch_transform=mixup)
        options = plain_config(max_steps=14, batch_size=7, micro_batch_size=2)
        with surestep.prepare(task, options, run="run") as session:
            for result in session.steps():
                found.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break
    assert_same([losses, weights(model)], [found, weights(ours)])


IMAGES = torch.randn(17, 2, 5, 7, generator=G, dtype=torch.float64)
CHANCES = torch.rand(17, 3, generator=G, dtype=torch.float64).softmax(1)
PER_CLASS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["weighted", "probabilities", "focal", "classes"])
def test_cutmix_of_odd_images_mixes_by_the_area_that_is_left(kind: str) -> None:
    def image_net() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(45, 3)).double()

    loss: Any = nn.CrossEntropyLoss(weight=PER_CLASS, label_smoothing=0.1)
    if kind == "focal":
        loss = surestep.losses.focal(alpha=[0.2, 0.3, 0.4])
    targets = CHANCES if kind == "probabilities" else Y[:17]
    model = image_net()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number, (x, y) in enumerate([*in_batches(6, IMAGES, targets)] * 2):
        seed_all("transform", 0, number)
        side = math.sqrt(1 - random.betavariate(1.0, 1.0))
        partner = torch.randperm(len(x))
        height, width = int(5 * side) // 2, int(7 * side) // 2
        row, column = random.randrange(5), random.randrange(7)
        top, bottom = max(row - height, 0), min(row + height, 5)
        left, right = max(column - width, 0), min(column + width, 7)
        pasted = x.clone()
        pasted[:, :, top:bottom, left:right] = x[partner][:, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / 35
        optimizer.zero_grad()
        outputs = model(pasted)
        if kind in ("probabilities", "classes"):
            chances = y if kind == "probabilities" else F.one_hot(y, 3).double()
            value = loss(outputs, share * chances + (1 - share) * chances[partner])
        else:
            value = share * loss(outputs, y) + (1 - share) * loss(outputs, y[partner])
        value.backward()
        optimizer.step()
        losses.append(value.item())
    cutmix = surestep.batch_transforms.cutmix(1.0, classes=3 if kind == "classes" else None)
    ours = image_net()
    task = surestep.Task(ours, loss, train=(IMAGES, targets), batch_transform=cutmix)
    session = prepare(task, plain_config(epochs=2, batch_size=6, micro_batch_size=4))
    found = [float(result.loss) for result in session.steps()]
    assert_same([losses, weights(model)], [found, weights(ours)])


def test_model_that_writes_into_its_inputs_does_not_change_the_data() -> None:

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x.mul_(2).sub_(1))

    def inputs(batch: Any) -> Any:
        x, z = batch
        return x + torch.rand(1).double(), z

    data = (X.clone(), Z.clone())
    model = net(2)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for epoch in range(2):
        for first in range(0, 47, 7):
            size = min(7, 47 - first)
            optimizer.zero_grad()
            parts = []
            for begin in range(first, first + size, 3):
                end = min(begin + 3, first + size)
                seed_all("inputs", 0, epoch, begin, "train")
                parts.append(X[begin:end] + torch.rand(1).double())
            total = F.mse_loss(model(torch.cat(parts) * 2 - 1), Z[first : first + size])
            total.backward()
            optimizer.step()
            losses.append(total.item())
    ours = Writing()
    task = surestep.Task(ours, nn.MSELoss(), train=data, val=data, inputs=inputs)
    session = prepare(task, plain_config(epochs=2, batch_size=7, micro_batch_size=3))
    found = []
    for result in session.steps():
        found.append(float(result.loss))
        session.evaluate()
    assert_same([losses, weights(model)], [found, weights(ours.net)])
    assert torch.equal(data[0], X)
