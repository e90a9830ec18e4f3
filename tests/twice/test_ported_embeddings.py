"""Contrastive, metric and distilled models: with queues, momentum and teachers."""

import copy
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

GENERATOR = torch.Generator().manual_seed(4)
A = torch.randn(29, 5, generator=GENERATOR, dtype=torch.float64)
B = A + 0.3 * torch.randn(29, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 3, (29,), generator=GENERATOR)
VAL = torch.randn(11, 5, generator=GENERATOR, dtype=torch.float64)
VAL_Y = torch.randint(0, 3, (11,), generator=GENERATOR)


def mlp(*sizes: int) -> nn.Sequential:
    """Return a small network with the same weights at each call."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inside, outside in pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).double()


class MoCo(nn.Module):
    """Momentum contrast: a key encoder that follows, and a queue of its keys."""

    queue: Tensor
    position: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = mlp(5, 7, 3), mlp(5, 7, 3)
        self.key.requires_grad_(False)
        first = torch.randn(13, 3, generator=torch.Generator().manual_seed(5)).double()
        self.register_buffer("queue", F.normalize(first, dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def follow(self) -> None:
        """Move the key encoder towards the query encoder."""
        for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
            mine.mul_(0.9).add_(theirs, alpha=0.1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        q = F.normalize(self.query(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.key(b), dim=1)
        own = (q * k).sum(1, keepdim=True)
        logits = torch.cat([own, q @ self.queue.clone().T], 1) / 0.2
        if self.training:
            where = (int(self.position) + torch.arange(len(k))) % len(self.queue)
            self.queue[where] = k
            self.position.copy_((self.position + len(k)) % len(self.queue))
        return logits


class Follow(surestep.Callback):
    """Moves the key encoder after each step."""

    def on_step(self, state: Any, result: Any) -> None:
        state.model.follow()


def first_is_right(batch: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return two views, and the class 0 of each."""
    return (batch[0], batch[1]), torch.zeros(len(batch[0]), dtype=torch.long)


def test_momentum_contrast_with_a_queue_that_is_longer_than_two_batches() -> None:
    net = MoCo()
    optimizer = torch.optim.SGD(net.query.parameters(), lr=0.05, momentum=0.9)
    losses, validated = [], []
    for _ in range(2):
        net.train()
        for a, b in in_batches(6, A, B):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(a, b), torch.zeros(len(a), dtype=torch.long))
            loss.backward()
            optimizer.step()
            net.follow()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            logits = net(VAL, VAL + 0.1)
        validated.append(F.cross_entropy(logits, torch.zeros(11, dtype=torch.long)).item())

    ours_net = MoCo()
    task = surestep.Task(
        ours_net,
        nn.CrossEntropyLoss(),
        train=(A, B),
        val=(VAL, VAL + 0.1),
        inputs=first_is_right,
    )
    config = plain_config(epochs=2, batch_size=6, optim={"lr": 0.05, "momentum": 0.9})
    session = prepare(task, config, callbacks=[Follow()])
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 5 == 0:
            evaluated.append(session.evaluate()["val/loss"])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Return SimCLR's loss as its authors' code computes it."""
    z = F.normalize(torch.cat([a, b]), dim=1)
    similarity = z @ z.T / temperature
    similarity.fill_diagonal_(-math.inf)
    n = len(a)
    return F.cross_entropy(similarity, torch.cat([torch.arange(n) + n, torch.arange(n)]))


class TwoViews(nn.Module):
    """One encoder for both views, with BatchNorm in the projector over both."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(5, 7)
        torch.manual_seed(1)
        self.projector = nn.Sequential(nn.Linear(7, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU())
        self.projector.append(nn.Linear(7, 3)).double()

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projector(self.encoder(torch.cat([a, b])))
        return z[: len(a)], z[len(a) :]


def test_two_views_with_one_normalization_and_a_dropped_last_batch() -> None:
    net = TwoViews()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    losses = []
    for _ in range(2):
        for a, b in list(in_batches(6, A, B))[:4]:
            optimizer.zero_grad()
            loss = nt_xent(*net(a, b), 0.5)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
    net.eval()
    with torch.no_grad():
        parts = [(nt_xent(*net(a, a + 0.1), 0.5), len(a)) for (a,) in in_batches(6, VAL)]
    validated = sum(value.item() * n for value, n in parts) / 11

    ours_net = TwoViews()
    task = surestep.Task(
        ours_net,
        surestep.losses.contrastive(temperature=0.5),
        train=(A, B),
        val=(VAL, VAL + 0.1),
        inputs=lambda batch: (tuple(batch), None),
    )
    config = plain_config(
        epochs=2,
        batch_size=6,
        schedule="cosine",
        data={"drop_last": True},
        optim={"momentum": 0.9, "weight_decay": 0.01, "groups": ["* decay=0.01"]},
        validation={"batch_size": 6},
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same(validated, session.evaluate()["val/loss"])


class ArcFace(nn.Module):
    """An encoder whose logits have a margin on the angle of the right class."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(5, 7, 4)
        self.prototypes = nn.Parameter(mlp(4, 3)[0].weight.detach().clone())  # type: ignore[union-attr, operator]

    def forward(self, x: Tensor, label: Tensor | None = None) -> Tensor:
        cosine = F.linear(F.normalize(self.encoder(x)), F.normalize(self.prototypes))
        if label is None or not self.training:
            return 8 * cosine
        angle = torch.acos(cosine.clamp(-1 + 1e-7, 1 - 1e-7))
        return 8 * torch.cos(angle + 0.3 * F.one_hot(label, 3))


def test_margin_on_angles_has_its_labels_as_inputs_and_its_own_rate_for_prototypes() -> None:
    net = ArcFace()
    optimizer = torch.optim.SGD(
        [{"params": net.encoder.parameters()}, {"params": [net.prototypes], "lr": 0.5}],
        lr=0.05,
        momentum=0.9,
    )
    losses, validated = [], []
    for _ in range(3):
        net.train()
        for x, y in in_batches(7, A, Y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x, y), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            logits = net(VAL)
        right = (logits.argmax(1) == VAL_Y).double().mean().item()
        validated.append([F.cross_entropy(logits, VAL_Y).item(), right])

    ours_net = ArcFace()
    task = surestep.Task(
        ours_net,
        nn.CrossEntropyLoss(),
        train={"x": A, "label": Y},
        val={"x": VAL, "label": VAL_Y},
        inputs=lambda batch: (batch, batch["label"]),
        metrics={"right": lambda outputs, y: (outputs.argmax(1) == y).double().mean()},
    )
    config = plain_config(
        epochs=3,
        batch_size=7,
        micro_batch_size=3,
        optim={"lr": 0.05, "momentum": 0.9, "groups": ["prototypes lr=0.5"]},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 5 == 0:
            found = session.evaluate()
            evaluated.append([found["val/loss"], found["val/right"]])

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])
    assert_same(logits.numpy(), session.predict("val")["output"])


class Features(nn.Module):
    """Returns its logits and its hidden features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(width)
        self.body = nn.Sequential(nn.Linear(5, width, bias=False), nn.BatchNorm1d(width))
        self.out = nn.Linear(width, 3)
        self.double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x).relu()
        return self.out(hidden), hidden


def distill(outputs: Any, targets: Any, T: float = 3.0) -> dict[str, Tensor]:
    """Return hard, soft and hint terms, as a script computes them."""
    (logits, hidden), (y, (soft, hint)) = outputs, targets
    divergence = F.kl_div(
        F.log_softmax(logits / T, 1),
        F.log_softmax(soft / T, 1),
        reduction="batchmean",
        log_target=True,
    )
    return {
        "hard": 0.3 * F.cross_entropy(logits, y),
        "soft": 0.7 * T * T * divergence,
        "hint": 0.1 * F.mse_loss(hidden, hint[:, :7]),
    }


def test_student_that_learns_from_logits_and_features_of_a_teacher() -> None:
    teacher, net = Features(11), Features(7)
    with torch.no_grad():
        teacher(B)  # its running statistics are not the initial ones
    kept = copy.deepcopy(teacher)
    teacher.eval()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses, validated = [], []
    for _ in range(2):
        net.train()
        for x, y in in_batches(7, A[:28], Y[:28]):
            optimizer.zero_grad()
            with torch.no_grad():
                soft = teacher(x)
            loss = sum(distill(net(x), (y, soft)).values())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        net.eval()
        with torch.no_grad():
            terms = distill(net(VAL), (VAL_Y, teacher(VAL)))
        validated.append(float(sum(terms.values())))

    ours_net = Features(7)
    task = surestep.Task(
        ours_net,
        distill,
        teacher=kept,
        train=(A[:28], Y[:28]),
        val=(VAL, VAL_Y),
        metrics={"right": lambda outputs, y: (outputs[0].argmax(1) == y).double().mean()},
    )
    config = plain_config(
        epochs=2,
        batch_size=7,
        optim={"name": "adam", "lr": 0.01, "momentum": surestep.NOT_SET},
        validation={"batch_size": 4},
    )
    session = prepare(task, config)
    ours, evaluated = [], []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.step % 4 == 0:
            evaluated.append(session.evaluate()["val/loss"])
    with torch.no_grad():
        plain_right = (net(VAL)[0].argmax(1) == VAL_Y).double().mean().item()

    assert_same([losses, validated, weights(net)], [ours, evaluated, weights(ours_net)])
    assert_same(plain_right, session.evaluate()["val/right"])
    assert_same(weights(teacher), weights(kept), exact=True)


class MeanTeacher(nn.Module):
    """A student and the moving average of it, which is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.average = mlp(5, 7, 3), mlp(5, 7, 3)
        self.average.requires_grad_(False)

    def forward(self, x: Tensor, noisy: Tensor) -> tuple[Tensor, Tensor]:
        return self.student(x), self.average(noisy)


class Consistency(nn.Module):
    """Cross-entropy of the labelled samples, and the distance to the teacher of all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = 0.0

    def forward(self, outputs: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        mine, theirs = outputs
        labelled = F.cross_entropy(mine, y, ignore_index=-1, reduction="sum")
        distance = (mine.softmax(1) - theirs.softmax(1)).square().sum()
        return labelled + self.weight * distance


class UpdateTeacher(surestep.Callback):
    """Updates the average after each step, and raises the weight of its distance."""

    def __init__(self, loss: Consistency) -> None:
        self.loss = loss

    def on_step(self, state: Any, result: Any) -> None:
        update_teacher(state.model, result.step)
        self.loss.weight = ramp(result.step)


def ramp(step: int) -> float:
    """Return the weight of the distance at a step."""
    return 2.0 * math.exp(-5 * (1 - min(1.0, step / 7)) ** 2) if step else 0.0


@torch.no_grad()
def update_teacher(net: MeanTeacher, step: int) -> None:
    """Move the teacher towards the student, faster in the first steps."""
    decay = min(1 - 1 / (step + 1), 0.95)
    for mine, theirs in zip(net.average.parameters(), net.student.parameters(), strict=True):
        mine.mul_(decay).add_(theirs, alpha=1 - decay)


def test_teacher_that_is_the_average_of_its_student_with_unlabelled_samples() -> None:
    labels = Y.masked_fill(torch.arange(29) % 3 != 0, -1)
    net, loss = MeanTeacher(), Consistency()
    optimizer = torch.optim.SGD(net.student.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    losses, step = [], 0
    for _ in range(2):
        for x, noisy, y in in_batches(7, A, B, labels):
            loss.weight = ramp(step)
            optimizer.zero_grad()
            value = loss(net(x, noisy), y)
            value.backward()
            optimizer.step()
            step += 1
            update_teacher(net, step)
            losses.append(value.item())
    loss.weight = ramp(step)
    with torch.no_grad():
        validated = loss(net(VAL, VAL), VAL_Y).item() / 11
        accuracy = (net.average(VAL).argmax(1) == VAL_Y).double().mean().item()

    ours_net, ours_loss = MeanTeacher(), Consistency()
    task = surestep.Task(
        ours_net,
        ours_loss,
        reduction="sum",
        train=(A, B, labels),
        val=(VAL, VAL, VAL_Y),
        inputs=lambda batch: ((batch[0], batch[1]), batch[2]),
        metrics={"teacher": lambda outputs, y: (outputs[1].argmax(1) == y).double().mean()},
    )
    config = plain_config(
        epochs=2,
        batch_size=7,
        micro_batch_size=3,
        optim={"lr": 0.02, "momentum": 0.9, "nesterov": True},
        validation={"batch_size": 4},
    )
    session = prepare(task, config, callbacks=[UpdateTeacher(ours_loss)])
    ours = [float(result.loss) for result in session.steps()]
    found = session.evaluate()

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same([validated, accuracy], [found["val/loss"], found["val/teacher"]])
