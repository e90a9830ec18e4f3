"""Programs that are known from tutorials, whose loop does more than steps over one dataset."""

import copy
import math
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_all, weights

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()


def linear() -> nn.Linear:
    """Return a layer with the same weights at each call."""
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


def least_known(net: nn.Module, labelled: list[int]) -> list[int]:
    """Return nine samples without labels whose outputs are nearest to zero."""
    with torch.no_grad():
        distance = net(X)[:, 0].abs()
    order = distance.argsort().tolist()
    return [index for index in order if index not in labelled][:9]


def test_forks_of_active_learning_label_more_samples() -> None:
    net, labelled = linear(), list(range(20))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for x, y in in_batches(7, X[labelled], Y[labelled]):
            optimizer.zero_grad()
            F.mse_loss(net(x), y).backward()
            optimizer.step()
        labelled += least_known(net, labelled)

    ours, known, steps, before = linear(), list(range(20)), 0, None
    for number in range(3):
        steps += math.ceil(len(known) / 7)
        task = surestep.Task(ours, nn.MSELoss(), train=Subset(TensorDataset(X, Y), list(known)))
        config = plain_config(max_steps=steps, batch_size=7, optim={"momentum": 0.9})
        surestep.Trainer(task, config, run=f"runs/{number}", from_=before).fit()
        known += least_known(ours, known)
        before = f"runs/{number}@last"

    assert labelled == known
    assert_same(weights(net), weights(ours))


class Speller(nn.Module):
    """A decoder that is fed its own outputs more often the longer it trains."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.cell, self.head = nn.Embedding(11, 6), nn.GRUCell(6, 6), nn.Linear(6, 11)
        self.double()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits, (samples, classes, time)."""
        state, token, outputs = self.table(source).mean(1), target[:, 0], []
        self.steps += int(self.training)
        share = 1 - 0.05 * int(self.steps) if self.training else 0.0
        for time in range(1, target.shape[1]):
            state = self.cell(self.table(token), state)
            outputs.append(self.head(state))
            is_forced = self.training and random.random() < share
            token = target[:, time] if is_forced else outputs[-1].argmax(1)
        return torch.stack(outputs, 2)


@pytest.mark.parametrize("stops", [(15,), (4, 9, 15)])
def test_teacher_forcing_that_fades_with_the_steps(stops: tuple[int, ...]) -> None:
    words = torch.randint(0, 11, (29, 12), generator=torch.Generator().manual_seed(3))
    source, target, labels = words[:, :5], words[:, 5:], words[:, 6:].clone()
    labels[::3, 4:] = -100
    net, found = Speller(), []
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(3):
        net.train()
        for number, (a, b, c) in enumerate(in_batches(7, source, target, labels)):
            seed_all("model", 0, 5 * epoch + number, 7 * number)
            optimizer.zero_grad()
            F.cross_entropy(net(a, b), c).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
        net.eval()
        with torch.no_grad():
            found.append(float(F.cross_entropy(net(source[:11], target[:11]), labels[:11])))

    train, val = (source, target, labels), (source[:11], target[:11], labels[:11])
    for stop in stops:
        ours = Speller()
        config = surestep.Config(
            max_steps=stop,
            batch_size=7,
            optim={"name": "adam", "lr": 0.01, "weight_decay": 0.0},
            schedule="constant",
            max_grad_norm=1.0,
            data={"shuffle": False},
            logging={"progress": "quiet"},
        )
        task = surestep.Task(ours, nn.CrossEntropyLoss(), train=train, val=val)
        run = surestep.Trainer(task, config, run="runs/speller").fit()
    evaluations = [event for event in run.events() if event["event"] == "evaluation"]
    by_step = {event["step"]: event["metrics"]["val/loss"] for event in evaluations}

    assert_same([found, weights(net)], [[by_step[step] for step in (5, 10, 15)], weights(ours)])


class TwoViews(nn.Module):
    """BYOL: an online network predicts what a network that follows it makes of another view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.online, self.predictor = nn.Linear(4, 3), nn.Linear(3, 3)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.double()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the loss of each sample."""
        first, second = self.predictor(self.online(a)), self.predictor(self.online(b))
        near = F.cosine_similarity
        return 4 - 2 * near(first, self.target(b)) - 2 * near(second, self.target(a))

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Let the target follow, more slowly from step to step."""
        share = 0.1 * (math.cos(math.pi * step / 20) + 1) / 2
        for mine, other in zip(self.target.parameters(), self.online.parameters(), strict=True):
            mine.lerp_(other, share)


def test_target_that_follows_in_an_own_loop_with_micro_batches_and_a_resume() -> None:
    net = TwoViews()
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    views = [batch for _ in range(3) for batch in in_batches(7, X + 0.1, X)]
    for step, (a, b) in enumerate(views[:20], start=1):
        optimizer.zero_grad()
        net(a, b).mean().backward()
        optimizer.step()
        net.follow(step)

    for stop in (9, 20):
        ours = TwoViews()
        task = surestep.Task(
            ours,
            lambda outputs, _: outputs.mean(),
            train=(X + 0.1, X),
            inputs=lambda batch: (tuple(batch), batch[1]),
        )
        options = {"micro_batch_size": 3, "optim": {"momentum": 0.9}}
        config = plain_config(max_steps=stop, batch_size=7, **options)
        with surestep.prepare(task, config, run="runs/views") as session:
            for result in session.steps():
                ours.follow(result.step)
            session.save()
    assert_same(weights(net), weights(ours))


def test_reptile_takes_a_part_of_the_way_to_the_weights_of_its_tasks() -> None:
    def problems() -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(5):
            rows = slice(9 * number, 9 * number + 9)
            yield X[rows], (1 + number) * Y[rows]

    @torch.no_grad()
    def move_back(net: nn.Module, before: dict[str, Tensor]) -> None:
        for name, parameter in net.named_parameters():
            parameter.copy_(before[name].lerp(parameter, 0.3))

    net, ours = linear(), linear()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    task = surestep.Task(ours, nn.MSELoss(), train=(X, Y))
    session = prepare(task, plain_config(max_steps=15, batch_size=4, optim={"lr": 0.05}))
    for x, y in problems():
        before, ours_before = weights(net), weights(ours)
        for batch in in_batches(4, x, y):
            optimizer.zero_grad()
            F.mse_loss(net(batch[0]), batch[1]).backward()
            optimizer.step()
            session.train_step([batch])
        move_back(net, before)
        move_back(ours, ours_before)
    assert_same(weights(net), weights(ours))
