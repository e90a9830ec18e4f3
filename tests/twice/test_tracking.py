"""What is recorded of a run: its events, the points of trackers, the files of TensorBoard."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.testing.runs import insert_events
from surestep.tracking.follower import Delivery
from surestep.tracking.tracker import Point
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

G = torch.Generator().manual_seed(13)
X = torch.randn(53, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (53,), generator=G)
Y[torch.rand(53, generator=G) < 0.3] = -100
Y[21:28] = -100  # a batch without items


class Memory(surestep.Tracker):
    """Keeps what it gets."""

    name: ClassVar[str] = "memory"

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.saved: dict[int, Mapping[str, float]] = {}
        self.order: list[int] = []

    def log(self, points: Sequence[Point]) -> None:
        self.points += points

    def checkpoint(self, path: Path, step: int, metrics: Mapping[str, float]) -> None:
        self.saved[step] = metrics
        self.order.append(step)

    def values(self, name: str) -> dict[int, float]:
        """Return the values of a name by step; of a step that comes twice the last."""
        return {p.step: p.values[name] for p in self.points if name in p.values}


def model() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def by_hand(epochs: int, limit: float) -> tuple[list[Any], list[Any], list[int], nn.Module]:
    """Return loss, norm and items of each step, with None for one without items."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses: list[Any] = []
    norms: list[Any] = []
    items = []
    for _ in range(epochs):
        for x, y in in_batches(7, X, Y):
            items.append(int((y != -100).sum()))
            if not items[-1]:
                losses.append(None)
                norms.append(None)
                continue
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(x), y)
            loss.backward()
            norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), limit)))
            optimizer.step()
            losses.append(loss.item())
    return losses, norms, items, net


def windows(every: int, steps: int, epoch: int, extra: Sequence[int] = ()) -> list[range]:
    """Return the steps between log points: each `every`, ends of epochs, and others."""
    ends = sorted({*range(every, steps + 1, every), *range(epoch, steps + 1, epoch), *extra})
    return [range(a, b) for a, b in zip([0, *ends], ends, strict=False)]


def mean(values: Sequence[Any]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known)


def test_events_and_points_have_each_step_of_uneven_log_windows() -> None:
    losses, norms, items, net = by_hand(3, limit=0.5)
    task = surestep.Task(model(), nn.CrossEntropyLoss(), train=(X, Y), val=(X[:20], Y[:20]))
    config = plain_config(
        epochs=3,
        batch_size=7,
        micro_batch_size=3,
        max_grad_norm=0.5,
        logging={"every": "5 steps"},
        validation={"every": "11 steps"},
    )
    memory = Memory()
    run = surestep.Trainer(task, config, run="run", trackers=[memory]).fit()
    events = [event for event in run.events() if event["event"] == "steps"]
    assert_same(losses, [loss for event in events for loss in event["loss"]])
    assert_same(norms, [norm for event in events for norm in event["grad_norm"]])
    spans = windows(5, 24, 8, extra=(11, 22))
    assert [event["first"] for event in events] == [span.start + 1 for span in spans]
    assert [event["items"] for event in events] == [sum(items[i] for i in s) for s in spans]
    samples = [4 if i % 8 == 7 else 7 for i in range(24)]
    assert [event["samples"] for event in events] == [sum(samples[i] for i in s) for s in spans]
    assert [event["epoch"] for event in events] == [(span.stop - 1) // 8 for span in spans]
    for name, values in {"train/loss": losses, "grad_norm": norms}.items():
        plain = {span.stop: mean([values[i] for i in span]) for span in spans}
        assert_same(plain, memory.values(name))
    for event, point in zip(events, [p for p in memory.points if "lr" in p.values], strict=True):
        speed = point.values["throughput/items_per_s"] * event["seconds"]
        assert speed == pytest.approx(event["items"])
        speed = point.values["throughput/samples_per_s"] * event["seconds"]
        assert speed == pytest.approx(event["samples"])
    with torch.no_grad():
        last = functional.cross_entropy(net(X[:20]), Y[:20])
    assert list(memory.values("val/loss")) == [11, 22, 24]
    assert_same(float(last), memory.values("val/loss")[24])
    assert run.status["items"] == sum(items)
    assert run.status["no_items"] == 3
    assert run.status["steps_taken"] == 21
    assert run.status["clipped"] == sum(norm is not None and norm > 0.5 for norm in norms)


def test_tensorboard_has_the_same_numbers_as_the_events() -> None:
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    losses, norms, _, net = by_hand(2, limit=9.0)
    task = surestep.Task(model(), nn.CrossEntropyLoss(), train=(X, Y), val=(X[:20], Y[:20]))
    config = plain_config(
        epochs=2,
        batch_size=7,
        max_grad_norm=9.0,
        logging={"every": "3 steps", "trackers": ["tensorboard"]},
        validation={"every": "5 steps"},
    )
    run = surestep.Trainer(task, config, run="run").fit()
    read = event_accumulator.EventAccumulator(str(run.path / "tensorboard"))
    read.Reload()
    spans = windows(3, 16, 8, extra=(5, 10, 15))
    for name, values in {"train/loss": losses, "grad_norm": norms}.items():
        ours = {e.step: torch.tensor(e.value) for e in read.Scalars(name)}
        plain = {s.stop: torch.tensor(mean([values[i] for i in s])) for s in spans if s.stop != 4}
        assert_same(plain, ours)
    assert [e.step for e in read.Scalars("val/loss")] == [5, 10, 15, 16]
    with torch.no_grad():
        last = functional.cross_entropy(net(X[:20]), Y[:20])
    assert_same(last.float(), torch.tensor(read.Scalars("val/loss")[-1].value))


def test_checkpoint_of_a_tracker_has_all_metrics_of_its_step() -> None:
    task = surestep.Task(
        model(),
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val={"a": (X[:11], Y[:11]), "b": (X[30:], Y[30:])},
        test=(X[:5], Y[:5]),
    )
    memory, found = Memory(), {}
    session = prepare(task, plain_config(epochs=1, batch_size=7), trackers=[memory])
    for result in session.steps():
        if result.step in (2, 5):
            found[result.step] = session.evaluate() | session.evaluate("test")
            session.save()
        if result.step == 6:
            session.save()
    session.close()
    assert_same(found | {6: {}}, dict(memory.saved))


def test_checkpoint_of_a_tracker_does_not_lose_metrics_to_one_of_another_checkpoint() -> None:
    task = surestep.Task(
        model(), nn.CrossEntropyLoss(), train=(X, Y), val=(X[:11], Y[:11]), test=(X[:5], Y[:5])
    )
    memory, found = Memory(), {}
    session = prepare(task, plain_config(epochs=1, batch_size=7), trackers=[memory])
    for result in session.steps():
        if result.step in (2, 5):
            found[result.step] = session.evaluate()
            if result.step == 5:
                session.evaluate_checkpoint("test", "last")
            session.save()
    session.close()
    assert_same(found, dict(memory.saved))


def test_checkpoint_that_is_written_late_has_the_metrics_of_its_own_step() -> None:
    task = surestep.Task(model(), nn.CrossEntropyLoss(), train=(X, Y))
    surestep.Trainer(task, plain_config(max_steps=1, batch_size=7), run="run").fit()

    def evaluated(step: int, loss: float) -> dict[str, Any]:
        return {"event": "evaluation", "step": step, "metrics": {"val/loss": loss}}

    def at(kind: str, step: int) -> dict[str, Any]:
        return {"event": kind, "step": step, "path": f"checkpoints/step-{step:08d}"}

    events = [evaluated(10, 1.0), evaluated(20, 2.0), at("checkpoint", 10), at("checkpoint", 20)]
    events += [evaluated(30, 3.0), at("rollback", 20), at("checkpoint", 30)]
    insert_events(Path("run"), [{"time": 0.0, **event} for event in events])
    memory = Memory()
    Delivery(Path("run"), memory).deliver()
    saved = {step: memory.saved[step] for step in (10, 20, 30)}
    assert_same({10: {"val/loss": 1.0}, 20: {"val/loss": 2.0}, 30: {}}, saved)


def test_values_logged_in_a_loss_are_means_over_items() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept = targets != -100
        return {
            "entropy": functional.cross_entropy(outputs, targets),
            "size": outputs[kept].abs().mean(),
        }

    net = model()
    plain_net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    rows: list[Any] = []
    for x, y in in_batches(7, X, Y):
        if (y == -100).all():
            rows.append(None)
            continue
        optimizer.zero_grad()
        terms = loss(plain_net(x), y)
        (terms["entropy"] + terms["size"]).backward()
        optimizer.step()
        rows.append([terms["entropy"].item(), terms["size"].item()])

    memory = Memory()
    task = surestep.Task(net, loss, items="tokens", train=(X, Y))
    config = plain_config(epochs=1, batch_size=7, micro_batch_size=2, logging={"every": "3 steps"})
    surestep.Trainer(task, config, run="run", trackers=[memory]).fit()
    for index, name in enumerate(("entropy", "size")):
        plain = {
            span.stop: mean([None if rows[i] is None else rows[i][index] for i in span])
            for span in windows(3, 8, 8)
        }
        assert_same(plain, memory.values(f"train/{name}"))


def test_term_that_is_called_loss_does_not_replace_the_total() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        kept = targets != -100
        terms = {"size": outputs[kept].square().mean()}
        return terms | {"loss": functional.cross_entropy(outputs, targets)}

    net = model()
    with torch.no_grad():
        terms = [float(term) for term in loss(net(X[:7]), Y[:7]).values()]
    memory = Memory()
    task = surestep.Task(net, loss, items="tokens", train=(X, Y))
    config = plain_config(max_steps=1, batch_size=7)
    surestep.Trainer(task, config, run="run", trackers=[memory]).fit()
    names = ("loss", "size", "logged_loss")
    ours = [memory.values(f"train/{name}")[1] for name in names]
    assert_same([sum(terms), *terms], ours)


def test_rates_of_groups_are_those_of_the_last_step_of_a_window() -> None:
    net = model()
    memory = Memory()
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y))
    config = plain_config(
        epochs=2,
        batch_size=7,
        schedule="linear",
        optim={"lr": 0.2, "groups": [surestep.ParamGroup("0.*", lr=0.1)]},
        logging={"every": "5 steps"},
    )
    rates: dict[int, list[float]] = {}

    class Watch(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            rates[result.step] = [group["lr"] for group in state.optimizer.param_groups]

    surestep.Trainer(task, config, run="run", trackers=[memory], callbacks=[Watch()]).fit()
    names = [name for name in memory.points[0].values if name.startswith("lr/")]
    assert len(names) == len(rates[1]) > 1
    for step in memory.values("lr"):
        ours = [memory.values(name)[step] for name in names]
        assert_same(sorted(rates[step]), sorted(ours), exact=True)
        assert memory.values("lr")[step] == rates[step][0]


def test_layer_norms_are_those_of_the_gradient_and_the_update() -> None:
    losses, _, _, _ = by_hand(1, limit=9.0)
    net = model()
    optimizer, plain = torch.optim.SGD(net.parameters(), lr=0.1), {}
    for step, (x, y) in enumerate(in_batches(7, X, Y), 1):
        if (y == -100).all():
            continue
        before = weights(net)
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        grads = [[p.grad for p in net[i].parameters()] for i in (0, 2)]  # type: ignore[index]
        optimizer.step()
        moved = {name: tensor - before[name] for name, tensor in weights(net).items()}
        plain[step] = {
            f"{kind}/{i}": float(torch.cat([part.flatten() for part in parts]).norm())
            for j, i in enumerate((0, 2))
            for kind, parts in {
                "grad_norm": grads[j],
                "weight_norm": [weights(net)[f"{i}.{n}"] for n in ("weight", "bias")],
                "update_norm": [moved[f"{i}.{n}"] for n in ("weight", "bias")],
            }.items()
        }
    memory = Memory()
    task = surestep.Task(model(), nn.CrossEntropyLoss(), train=(X, Y))
    config = plain_config(
        epochs=1, batch_size=7, micro_batch_size=3, logging={"every": "3 steps", "per_layer": True}
    )
    surestep.Trainer(task, config, run="run", trackers=[memory]).fit()
    for step in (3, 6, 8):
        ours = {name: memory.values(name)[step] for name in plain[step]}
        assert_same(plain[step], ours)
    assert len(losses) == 8
