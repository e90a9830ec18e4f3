"""Streams in loaders, of ready batches, with states and limits, and evaluations on them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train, weights
from tests.twice.test_streams import Augmented, Rows, X, Z, augmented, by_hand, config, net


def stack(samples: list[Any]) -> Any:
    """Collate samples into a dict of the stream's own kind."""
    x = torch.stack([x for x, _ in samples])
    return {"x": x - x.mean(), "y": torch.stack([z for _, z in samples])}


class Named(nn.Module):
    """Takes its input by name, returns nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_loader_of_a_stream_gives_its_batches_and_collation() -> None:
    plain_net, ours_net = net(), Named()
    batches = [stack(list(zip(x, z, strict=True))) for x, z in in_batches(5, X, Z)] * 2
    plain = by_hand(plain_net, [(batch["x"], batch["y"]) for batch in batches])
    with torch.no_grad():
        total = 0.0
        for x, z in in_batches(8, X[:29], Z[:29]):
            batch = stack(list(zip(x, z, strict=True)))
            total += F.mse_loss(plain_net(batch["x"]), batch["y"], reduction="sum").item()

    task = surestep.Task(
        ours_net,
        nn.MSELoss(),
        train=DataLoader(Rows(), batch_size=5, collate_fn=stack),
        val=DataLoader(Rows(29), batch_size=8, collate_fn=stack),
        collate_fn=stack,
    )
    session = prepare(task, config(max_steps=22, batch_size=surestep.NOT_SET))
    ours = [float(result.loss) for result in session.steps()]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net.net))
    assert_same(total / 58, session.evaluate()["val/loss"])


class Boxes(IterableDataset[Any]):
    """Ready batches of different sizes."""

    def __init__(self, sizes: tuple[int, ...] = (5, 1, 7, 3, 4)) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Any]:
        first = 0
        for size in self.sizes:
            yield X[first : first + size], Z[first : first + size]
            first += size


def test_stream_of_ready_batches_weighs_their_items() -> None:
    plain_net, ours_net = net(), net()
    plain = by_hand(plain_net, [(X[:6], Z[:6]), (X[6:16], Z[6:16]), (X[16:20], Z[16:20])] * 2)
    with torch.no_grad():
        loss = F.mse_loss(plain_net(X[:9]), Z[:9]).item()

    task = surestep.Task(ours_net, nn.MSELoss(), train=Boxes(), val=Boxes((2, 1, 6)), batched=True)
    session = prepare(task, config(max_steps=6, batch_size=2))
    ours = [float(result.loss) for result in session.steps()]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))
    assert_same(loss, session.evaluate()["val/loss"])
    assert_same(Z[:9], session.predict("val")["target"])


class Counted(Rows):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return len(self.rows)


def test_stream_with_a_length_has_fractions_of_epochs() -> None:
    plain_net, ours_net = net(), net()
    batches = list(in_batches(7, X, Z))
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 12)
    plain = []
    for x, z in (batches * 2)[:12]:
        optimizer.zero_grad()
        loss = F.mse_loss(plain_net(x), z)
        loss.backward()
        optimizer.step()
        scheduler.step()
        plain.append(loss.item())

    task = surestep.Task(
        ours_net,
        nn.MSELoss(),
        train=Counted(),
        schedule=lambda step, total: 1 - step / total,
    )
    options = plain_config(epochs=1.5, batch_size=7, schedule=surestep.NOT_SET)
    ours = [float(result.loss) for result in prepare(task, options).steps()]

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


class Stateful(IterableDataset[Any]):
    """Draws rows from its generator, which is a part of its state."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.read = 0

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state(), "read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
        self.read = state["read"]

    def __iter__(self) -> Iterator[Any]:
        while self.read < 23:
            self.read += 1
            row = int(torch.randint(53, (), generator=self.generator))
            yield X[row], Z[row]
        self.read = 0


def test_stream_with_a_state_resumes_and_is_not_moved_by_evaluations() -> None:
    data = Stateful()
    samples = list(data)
    x = torch.stack([x for x, _ in samples])
    z = torch.stack([z for _, z in samples])
    plain_net = net()
    plain = by_hand(plain_net, list(in_batches(7, x, z)) * 3)

    ours, shared = [], Stateful()
    for stop in (2, 4, 9, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=shared, val=shared)
        with surestep.prepare(task, config(max_steps=12), run="run") as session:
            assert session.plan.data_resume == "by its own state"
            for result in session.steps():
                ours.append(float(result.loss))
                if result.step % 3 == 1:
                    session.evaluate()
                    session.predict("train")
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_limited_stream_reads_the_first_batches_of_a_pass() -> None:
    plain_net, ours_net = net(), net()
    plain = by_hand(plain_net, list(in_batches(7, X[:21], Z[:21])) * 3)

    task = surestep.Task(ours_net, nn.MSELoss(), train=Rows(), val=Rows(29))
    options = config(
        max_steps=9, limit_train_batches=3, limit_val_batches=2, validation={"batch_size": 5}
    )
    session = prepare(task, options)
    found = list(session.steps())
    with torch.no_grad():
        loss = F.mse_loss(plain_net(X[:10]), Z[:10]).item()

    assert_same(plain, [float(result.loss) for result in found])
    assert [result.epoch for result in found] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert_same(loss, session.evaluate()["val/loss"])
    assert session.predict("val").samples == 29


def test_metrics_on_streams_of_different_lengths_are_over_all_samples() -> None:
    plain_net, ours_net = net(), net()

    def within(outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs - targets).abs() < 1).double().mean(dim=1).mean()

    def spread(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).std()

    plain: dict[str, float] = {}
    with torch.no_grad():
        for name, count in (("one", 1), ("few", 8), ("most", 29)):
            outputs = plain_net(X[:count])
            plain[f"{name}/loss"] = F.mse_loss(outputs, Z[:count]).item()
            plain[f"{name}/within"] = within(outputs, Z[:count]).item()
            plain[f"{name}/spread"] = spread(outputs, Z[:count]).item()

    task = surestep.Task(
        ours_net,
        nn.MSELoss(),
        train=Rows(),
        val={"one": Rows(1), "few": DataLoader(Rows(8), batch_size=3), "most": Counted(29)},
        metrics={"within": within, "spread": surestep.whole_set(spread)},
    )
    options = config(max_steps=1, validation={"metric": "most/loss"})
    ours = prepare(task, options).evaluate()

    assert_same(plain, ours)


def test_statistics_of_the_average_are_those_of_the_stream() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 2))

    plain_net, ours_net = model().double(), model().double()
    average = torch.optim.swa_utils.AveragedModel(plain_net)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    batches = list(in_batches(7, X[:23], Z[:23]))
    for x, z in batches * 2:
        optimizer.zero_grad()
        F.mse_loss(plain_net(x), z).backward()
        optimizer.step()
        average.update_parameters(plain_net)
    torch.optim.swa_utils.update_bn(batches, average)
    average.eval()
    with torch.no_grad():
        plain = F.mse_loss(average(X[23:]), Z[23:]).item()

    class Rest(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for row in range(23, 53):
                yield X[row], Z[row]

    task = surestep.Task(ours_net, nn.MSELoss(), train=Rows(23), val=Rest())
    options = config(
        max_steps=8,
        optim={},
        average={"kind": "swa", "start": 0, "every": "1 step", "buffers": "recompute"},
    )
    session = train(task, options)
    before = weights(ours_net)

    assert_same(plain, session.evaluate()["val/loss"])
    assert_same(before, weights(ours_net), exact=True)
    assert_same(weights(plain_net), before)


class Halves(IterableDataset[Any]):
    """A stream with a state, of which each worker reads its half; they have different lengths."""

    def __init__(self) -> None:
        self.read, self.generator = 0, torch.Generator().manual_seed(5)

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.read = state["read"]
        self.generator.set_state(state["generator"])

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        while self.read < (31 if worker == 0 else 16):
            self.read += 1
            row = int(torch.randint(26, (), generator=self.generator)) + 26 * worker
            yield X[row], Z[row]
        self.read = 0


def test_workers_with_states_of_their_own_resume_where_they_were() -> None:
    rows: list[list[int]] = []
    for worker, count in enumerate((31, 16)):
        generator = torch.Generator().manual_seed(5)
        draws = [int(torch.randint(26, (), generator=generator)) for _ in range(count)]
        rows.append([draw + 26 * worker for draw in draws])
    first = [rows[0][at : at + 7] for at in range(0, 28, 7)]
    second = [rows[1][at : at + 7] for at in range(0, 14, 7)]
    epoch = [first[0], second[0], first[1], second[1], first[2], first[3]]
    epoch += [rows[0][28:] + rows[1][14:]]
    plain_net = net()
    plain = by_hand(plain_net, [(X[batch], Z[batch]) for batch in epoch * 2])

    ours = []
    for stop in (5, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.MSELoss(), train=Halves())
        options = config(max_steps=14, data={"num_workers": 2})
        with surestep.prepare(task, options, run="run") as session:
            assert session.plan.data_resume == "by its own state"
            for result in session.steps():
                ours.append(float(result.loss))
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


class Split(IterableDataset[Any]):
    """Each worker reads every n-th row."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(worker, 23, workers):
            yield X[row], Z[row]


def test_predictions_of_a_stream_with_workers_are_in_its_order() -> None:
    model = net()
    with torch.no_grad():
        outputs = model(X[:23])
    val = DataLoader(Split(), batch_size=4, num_workers=2)
    task = surestep.Task(model, nn.MSELoss(), train=(X, Z), val=val)
    session = prepare(task, plain_config(epochs=1, batch_size=7))
    found = session.predict("val")

    assert_same(F.mse_loss(outputs, Z[:23]).item(), session.evaluate()["val/loss"])
    assert_same(
        [torch.arange(23), outputs, Z[:23]], [found[name] for name in ("index", "output", "target")]
    )


def test_loop_that_is_left_and_entered_again_reads_on() -> None:
    plain_net = net()
    batches = [batch for epoch in range(3) for batch in in_batches(7, *augmented(epoch))]
    plain = by_hand(plain_net, batches)

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, input: Tensor) -> Tensor:
            return self.net(input)

    ours_net, ours = Named(), []
    task = surestep.Task(ours_net, nn.MSELoss(), train=Augmented(), val=Augmented())
    session = prepare(task, config(max_steps=12))
    while len(ours) < 12:
        for number, result in enumerate(session.steps(), start=1):
            ours.append(float(result.loss))
            if number == 3:
                break
        session.evaluate("train")
        session.predict("val")

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net.net))
