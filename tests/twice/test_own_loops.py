"""Your own loop: own batches, evaluations and saves in between, leaving and continuing it."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

G = torch.Generator().manual_seed(17)
N = 37
X = torch.randn(N, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (N,), generator=G)
Y[torch.rand(N, generator=G) < 0.3] = -100
Batch = tuple[Tensor, Tensor]


def model(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(6)
    layers = [nn.Linear(4, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Linear(5, 3)]
    return nn.Sequential(*layers).double()


class ByHand:
    """A plain loop with momentum, one step at a time."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
        self.losses: list[float] = []
        self.norms: list[float] = []

    def step(self, *micro_batches: Batch) -> None:
        """Take a step on batches that are accumulated: a mean over all their targets."""
        self.optimizer.zero_grad()
        items = sum(int((y != -100).sum()) for _, y in micro_batches)
        loss: Any = 0.0
        for x, y in micro_batches:
            part = functional.cross_entropy(self.net(x), y, reduction="sum") / items
            part.backward()
            loss += part.item()
        grads = [p.grad.flatten() for p in self.net.parameters() if p.grad is not None]
        self.norms.append(float(torch.cat(grads).norm()))
        self.optimizer.step()
        self.losses.append(loss)

    @torch.no_grad()
    def evaluate(self, size: int) -> float:
        """Return the mean loss of the first samples."""
        self.net.eval()
        found = float(functional.cross_entropy(self.net(X[:size]), Y[:size]))
        self.net.train()
        return found


def task_of(net: nn.Module, **more: Any) -> surestep.Task:
    return surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), **more)


def config_of(**options: Any) -> surestep.Config:
    optim = {"lr": 0.2, "momentum": 0.9}
    return plain_config(**{"epochs": 2, "batch_size": 7, "optim": optim} | options)


def cut(*sizes: int) -> list[Batch]:
    """Cut the data into batches of these sizes."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [(X[e - s : e], Y[e - s : e]) for s, e in zip(sizes, ends, strict=True)]


@pytest.mark.parametrize("norm", [False, True])
def test_steps_on_own_batches_of_any_sizes_are_means_over_their_items(norm: bool) -> None:
    hand, parts = ByHand(model(norm=norm)), cut(3, 11, 2, 5, 9, 7)
    net = copy.deepcopy(hand.net)
    for first in range(0, 6, 3):
        hand.step(*parts[first : first + 3])
    session = prepare(task_of(net), config_of())
    results = [session.train_step(parts[first : first + 3]) for first in range(0, 6, 3)]
    assert_same(
        [hand.losses, hand.norms, weights(hand.net)],
        [[float(r.loss) for r in results], [float(r.grad_norm) for r in results], weights(net)],
    )
    assert [r.samples for r in results] == [16, 21]
    assert [r.items for r in results] == [int((Y[:16] >= 0).sum()), int((Y[16:] >= 0).sum())]
    assert session.state.progress.items == int((Y >= 0).sum())
    assert session.state.progress.position == 0


def test_own_batches_between_the_steps_of_the_data_do_not_move_its_position() -> None:
    hand, own = ByHand(model()), cut(1, 6, 4)
    net = copy.deepcopy(hand.net)
    for _ in range(2):
        for index, batch in enumerate(in_batches(7, X, Y)):
            hand.step(batch)  # type: ignore[arg-type]
            if index in (1, 4):
                hand.step(*own)
    session, ours = prepare(task_of(net), config_of(max_steps=16, epochs=None)), []
    for result in session.steps():
        ours.append(float(result.loss))
        if result.progress_before.position in (7, 28):
            ours.append(float(session.train_step(own).loss))
    assert_same([hand.losses, weights(hand.net)], [ours, weights(net)])


def test_own_batches_after_the_last_sample_of_an_epoch_come_before_the_next_epoch() -> None:
    hand, own = ByHand(model()), cut(5)
    net = copy.deepcopy(hand.net)
    for _ in range(2):
        for batch in in_batches(7, X, Y):
            hand.step(batch)  # type: ignore[arg-type]
        hand.step(*own)
    session, ours = prepare(task_of(net), config_of(max_steps=14, epochs=None)), []
    for result in session.steps():
        ours.append(float(result.loss))
        if session.state.progress.position == 0:
            ours.append(float(session.train_step(own).loss))
    assert_same([hand.losses, weights(hand.net)], [ours, weights(net)])


def test_loop_that_is_left_and_entered_again_continues_where_it_was() -> None:
    hand = ByHand(model())
    net = copy.deepcopy(hand.net)
    for _ in range(2):
        for batch in in_batches(7, X, Y):
            hand.step(batch)  # type: ignore[arg-type]
    session, ours = prepare(task_of(net), config_of()), []
    for stop in (1, 3, 6, 11, 12):  # in the first batch, at the end of an epoch, at the end
        for result in session.steps():
            ours.append(float(result.loss))
            if result.step == stop:
                break
    assert_same([hand.losses, weights(hand.net)], [ours, weights(net)])
    assert not list(session.steps())


def test_evaluations_saves_and_predictions_in_between_change_no_step() -> None:
    hand = ByHand(model(norm=True))
    net = copy.deepcopy(hand.net)
    plain: list[Any] = []
    for _ in range(2):
        for batch in in_batches(7, X, Y):
            hand.step(batch)  # type: ignore[arg-type]
            plain.append([hand.evaluate(13), hand.evaluate(1)])
    val = {"some": (X[:13], Y[:13]), "one": (X[:1], Y[:1])}
    session = prepare(
        task_of(net, val=val, test=(X[:3], Y[:3])), config_of(validation={"batch_size": 4})
    )
    ours, losses = [], []
    for result in session.steps():
        session.save()
        found = session.evaluate()
        ours.append([found["some/loss"], found["one/loss"]])
        session.predict("test")
        session.evaluate("train")
        losses.append(float(result.loss))
    assert_same([hand.losses, plain, weights(hand.net)], [losses, ours, weights(net)])


def test_best_and_last_of_an_own_loop_are_those_that_were_evaluated_and_saved() -> None:
    hand = ByHand(model())
    net = copy.deepcopy(hand.net)
    values, kept = {}, {}
    for step, batch in enumerate([*in_batches(7, X, Y)] * 2, 1):
        hand.step(batch)  # type: ignore[arg-type]
        if step % 3 == 0:
            values[step], kept[step] = hand.evaluate(13), weights(hand.net)
    best = min(values, key=lambda step: values[step])
    session = prepare(task_of(net, val=(X[:13], Y[:13])), config_of(checkpoint={"keep_last": 1}))
    for result in session.steps():
        if result.step % 3 == 0:
            session.evaluate()
            session.save()
        elif result.step % 3 == 1:
            session.save()  # without metrics: never the best
    session.close()
    run = session.run
    assert_same(
        [best, values[best], 12], [run.best.step, run.best.metrics["val/loss"], run.last.step]
    )
    loaded = model()
    run.load_model(loaded, which="best")
    assert_same(kept[best], weights(loaded))


def test_save_before_the_evaluation_of_a_step_is_completed_by_a_second_save() -> None:
    session = prepare(task_of(model(), val=(X[:13], Y[:13])), config_of())
    for result in session.steps():
        if result.step == 2:
            session.save()
            found = session.evaluate()
            session.save()
            break
    assert_same(found, dict(session.run.last.metrics))


def test_run_that_is_opened_again_in_mid_epoch_continues_with_the_same_numbers() -> None:
    hand = ByHand(model())
    net, own = copy.deepcopy(hand.net), cut(2, 3)
    for step, batch in enumerate([*in_batches(7, X, Y)] * 2, 1):
        hand.step(batch)  # type: ignore[arg-type]
        if step == 4:
            hand.step(*own)
    config, ours = config_of(max_steps=13, epochs=None), []
    with surestep.prepare(task_of(net), config, run="run") as session:
        for result in session.steps():
            ours.append(float(result.loss))
            if result.step == 4:
                ours.append(float(session.train_step(own).loss))
                session.metadata["seen"] = len(ours)
                session.save()
            if result.step == 7:
                break  # not saved: done again
    del ours[5:]
    other = model()
    with torch.no_grad():
        other[0].weight.zero_()  # type: ignore[index,operator]
    with surestep.prepare(task_of(other), config, run="run") as session:
        assert session.metadata["seen"] == 5
        ours += [float(result.loss) for result in session.steps()]
    assert_same([hand.losses, weights(hand.net)], [ours, weights(other)])


def test_results_have_the_numbers_of_their_step() -> None:
    net = model()
    session = prepare(
        task_of(net), config_of(schedule="linear", max_steps=12, epochs=None, max_grad_norm=0.1)
    )
    for index, result in enumerate(session.steps()):
        x, y = [*in_batches(7, X, Y)][index % 6]
        assert (result.step, result.epoch) == (index + 1, index // 6)
        assert result.samples == len(x)
        assert result.items == result.divisor == int((y != -100).sum())
        assert result.progress_before.position == index % 6 * 7
        assert result.lr == session.optimizer.param_groups[0]["lr"]
        assert bool(result.took_step)
        assert_same(0.2 * (1 - index / 12), result.lr)


class Recorder(surestep.Callback):
    """Records what happens, and requests something at some steps."""

    def __init__(self, requests: dict[int, Sequence[surestep.Request]]) -> None:
        self.requests = requests
        self.evaluated: dict[int, float] = {}
        self.saved: dict[int, dict[str, Any]] = {}
        self.logged: list[float | None] = []

    def on_step(self, state: Any, result: Any) -> surestep.Request | None:
        return next(iter(self.requests.get(result.step, ())), None)

    def on_log(self, state: Any, point: Any) -> surestep.Request | None:
        self.logged += point.loss
        return next(iter(self.requests.get(state.progress.step, ())[1:]), None)

    def on_evaluate(self, state: Any, metrics: Any) -> None:
        assert state.progress.step not in self.evaluated
        self.evaluated[state.progress.step] = metrics["val/loss"]

    def on_save(self, state: Any, checkpoint: Any) -> None:
        self.saved[checkpoint.step] = dict(checkpoint.metrics)


SAVE, EVALUATE, STOP = surestep.Request.SAVE, surestep.Request.EVALUATE, surestep.Request.STOP


@pytest.mark.parametrize("own_loop", [False, True])
def test_requests_are_done_after_their_step_with_its_numbers(own_loop: bool) -> None:
    hand, plain = ByHand(model()), {}
    net = copy.deepcopy(hand.net)
    for step, batch in enumerate([*in_batches(7, X, Y)] * 2, 1):
        hand.step(batch)  # type: ignore[arg-type]
        if step in (2, 5):
            plain[step] = hand.evaluate(13)
        if step == 9:
            break
    seen = Recorder({2: [EVALUATE], 3: [SAVE], 5: [EVALUATE, SAVE], 9: [STOP]})
    config = config_of(validation={"every": "100 epochs"}, checkpoint={"every": "100 epochs"})
    task = task_of(net, val=(X[:13], Y[:13]))
    if own_loop:
        session = prepare(task, config, callbacks=[seen])
        assert len(list(session.steps())) == 9
        session.close()
    else:
        plain[9] = hand.evaluate(13)
        surestep.Trainer(task, config, run="run", callbacks=[seen]).fit()
    assert_same([hand.losses, weights(hand.net)], [seen.logged, weights(net)])
    assert_same(plain, seen.evaluated)
    assert seen.saved[3] == {}
    assert_same({"val/loss": plain[5]}, seen.saved[5])


@pytest.mark.parametrize("every", ["1 steps", "5 steps", "100 steps"])
def test_log_points_have_every_step_once_whatever_is_between(every: str) -> None:
    hand, own = ByHand(model()), cut(2, 3)
    net = copy.deepcopy(hand.net)
    seen = Recorder({})
    config = config_of(max_steps=15, epochs=None, logging={"every": every})
    session, losses = prepare(task_of(net, val=(X[:13], Y[:13])), config, callbacks=[seen]), []
    for result in session.steps():
        losses.append(float(result.loss))
        if result.step % 4 == 0:
            session.evaluate()
        if result.step % 6 == 0:
            losses.append(float(session.train_step(own).loss))
            session.save()
    session.close()
    events = [e for e in session.run.events() if e["event"] == "steps"]
    recorded = [loss for event in events for loss in event["loss"]]
    assert_same(losses, seen.logged)
    assert_same(losses, recorded)
    firsts = [event["first"] for event in events]
    counts = [len(event["loss"]) for event in events]
    assert firsts == [1 + sum(counts[:i]) for i in range(len(counts))]


def test_plateau_and_patience_follow_the_evaluations_of_an_own_loop() -> None:
    hand = ByHand(model())
    net = copy.deepcopy(hand.net)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        hand.optimizer, factor=0.5, patience=1, threshold=0.0, threshold_mode="abs", mode="max"
    )
    plain = []
    for batch in [*in_batches(7, X, Y)] * 3:
        plain.append(hand.optimizer.param_groups[0]["lr"])
        hand.step(batch)  # type: ignore[arg-type]
        plateau.step(hand.evaluate(13))  # of a loss that falls: worse each time, with "max"
    options = {"factor": 0.5, "patience": 1, "threshold": 0.0}
    config = config_of(
        epochs=3,
        schedule={"name": "reduce_on_plateau", **options},
        validation={"mode": "max", "metric": "val/loss"},
    )
    session = prepare(task_of(net, val=(X[:13], Y[:13])), config)
    ours = []
    for result in session.steps():
        ours.append(result.lr)
        session.evaluate()
        session.evaluate()  # the same step again counts once
    assert_same([plain, weights(hand.net)], [ours, weights(net)])


def test_own_batches_of_a_dict_with_items_of_a_function() -> None:
    share = torch.rand(N, generator=G, dtype=torch.float64)
    target = X.sum(1)

    def loss(outputs: Tensor, targets: Any) -> Tensor:
        wanted, weight = targets
        return (weight * (outputs[:, 0] - wanted) ** 2).sum() / weight.sum()

    def batches(*sizes: int) -> Iterator[dict[str, Tensor]]:
        first = 0
        for size in sizes:
            span = slice(first, first + size)
            yield {"x": X[span], "t": target[span], "w": share[span]}
            first += size

    net = model()
    plain_net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.2)
    value = loss(plain_net(X[:20]), (target[:20], share[:20]))
    value.backward()
    optimizer.step()
    data = [{"x": X[i], "t": target[i], "w": share[i]} for i in range(N)]
    task = surestep.Task(
        net,
        loss,
        train=data,
        inputs=lambda batch: (batch["x"], (batch["t"], batch["w"])),
        items=lambda batch: float(batch["w"].sum()),
    )
    session = prepare(task, plain_config(epochs=1, batch_size=7, optim={"lr": 0.2}))
    result = session.train_step([*batches(1, 12, 7)])
    assert_same(
        [value.item(), weights(plain_net), float(share[:20].sum())],
        [float(result.loss), weights(net), result.items],
    )
