"""What evaluations decide: the best step, early stopping, what a search gets of a run."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import surestep
from surestep.tuning.evaluations import read_measurements, read_result
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

G = torch.Generator().manual_seed(19)
X = torch.randn(41, 4, generator=G, dtype=torch.float64)
Y = torch.randint(0, 3, (41,), generator=G)
VAL = {"a": (X[:13], Y[:13]), "b": (X[30:], Y[30:])}


def model() -> nn.Module:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def by_hand(net: nn.Module, epochs: int, measure: Any, lr: float = 0.5) -> dict[int, Any]:
    """Train with batches of 7; return what is measured after each epoch, by step."""
    optimizer, found, step = torch.optim.SGD(net.parameters(), lr=lr), {}, 0
    for _ in range(epochs):
        for x, y in in_batches(7, X, Y):
            step += 1
            optimizer.zero_grad()
            functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            found[step] = measure(net)
        net.train()
    return found


def config_of(**options: Any) -> surestep.Config:
    validation = {"every": "1 epoch", "batch_size": 4} | options.pop("validation", {})
    defaults: dict[str, Any] = {"epochs": 6, "batch_size": 7, "optim": {"lr": 0.5}}
    return plain_config(**defaults | options, validation=validation)


def evaluations(run: surestep.Run, name: str) -> dict[int, Any]:
    found = [event for event in run.events() if event["event"] == "evaluation"]
    return {event["step"]: float(event["metrics"][name]) for event in found}


def loss_of(net: nn.Module, name: str) -> float:
    x, y = VAL[name]
    with torch.no_grad():
        return float(functional.cross_entropy(net(x), y))


def test_first_validation_set_decides_the_best_and_all_are_recorded() -> None:
    net = model()
    plain = by_hand(copy.deepcopy(net), 6, lambda n: [loss_of(n, "a"), loss_of(n, "b")])
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=VAL)
    run = surestep.Trainer(task, config_of(), run="run").fit()
    for index, name in enumerate(("a", "b")):
        values = {step: row[index] for step, row in plain.items()}
        assert_same(values, evaluations(run, f"{name}/loss"))
    assert run.monitor is not None
    column = ["a/loss", "b/loss"].index(run.monitor[0])
    assert run.best.step == min(plain, key=lambda step: plain[step][column])


def test_nan_of_a_metric_is_never_the_best_and_infinity_the_worst() -> None:
    scores = iter([math.nan, -math.inf, 0.3, math.nan, 0.7, 0.7])
    current = [0.0]

    def score(outputs: Tensor, targets: Tensor) -> float:
        return current[0]

    class Next(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            if result.step % 6 == 0:
                current[0] = next(scores)

    task = surestep.Task(
        model(), nn.CrossEntropyLoss(), train=(X, Y), val=VAL, metrics={"score": score}
    )
    config = config_of(validation={"metric": "b/score", "mode": "max"})
    run = surestep.Trainer(task, config, run="run", callbacks=[Next()]).fit()
    plain = {6: math.nan, 12: -math.inf, 18: 0.3, 24: math.nan, 30: 0.7, 36: 0.7}
    assert_same(plain, evaluations(run, "b/score"))
    assert (run.best.step, run.best.metrics["b/score"]) == (30, 0.7)
    result = read_result(run, 7)
    assert (result.step, result.metrics["b/score"], result.evaluations) == (30, 0.7, 6)


@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_early_stop_counts_evaluations_without_enough_improvement(delta: float) -> None:
    net = model()
    plain = by_hand(copy.deepcopy(net), 30, lambda n: loss_of(n, "a"))
    best, since, stop = math.inf, 0, 0
    for step, value in plain.items():
        best, since = (value, 0) if best - value > delta or best == math.inf else (best, since + 1)
        if since == 3:
            stop = step
            break
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=VAL["a"])
    config = config_of(epochs=30, early_stop={"patience": 3, "min_delta": delta})
    run = surestep.Trainer(task, config, run="run").fit()
    assert run.status["step"] == (stop or 180)
    assert_same(
        {step: value for step, value in plain.items() if step <= (stop or 180)},
        evaluations(run, "val/loss"),
    )


def test_result_for_a_search_is_the_best_evaluation_with_all_its_metrics() -> None:
    net = model()

    def measure(n: nn.Module) -> dict[str, float]:
        right = (n(VAL["b"][0]).argmax(1) == VAL["b"][1]).double().mean()
        losses = {f"{name}/loss": loss_of(n, name) for name in VAL}
        x, y = VAL["a"]
        return losses | {
            "a/accuracy": float((n(x).argmax(1) == y).double().mean()),
            "b/accuracy": float(right),
        }

    plain = by_hand(copy.deepcopy(net), 6, measure)
    best = max(plain, key=lambda step: (plain[step]["b/accuracy"], -step))
    task = surestep.Task(
        net,
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val=VAL,
        metrics={"accuracy": lambda o, t: (o.argmax(1) == t).double().mean()},
    )
    config = config_of(validation={"metric": "b/accuracy", "mode": "max"})
    run = surestep.Trainer(task, config, run="run").fit()
    result = read_result(run, 40)
    ours = {name: value for name, value in result.metrics.items() if "/" in name}
    assert_same([best, plain[best]], [result.step, ours])
    assert (result.metrics["parameters"], result.evaluations, result.last_step) == (40, 6, 36)
    assert read_measurements(run).seconds == pytest.approx(run.status["seconds"], abs=0.01)


def test_measurements_of_a_run_that_was_stopped_count_each_evaluation_once() -> None:
    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> surestep.Request | None:
            return surestep.Request.PAUSE if result.step == 15 else None

    net = model()
    plain = by_hand(copy.deepcopy(net), 6, lambda n: loss_of(n, "a"))
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=VAL["a"])
    trainer = surestep.Trainer(task, config_of(), run="run", callbacks=[Pause()])
    with pytest.raises((SystemExit, surestep.SurestepError, KeyboardInterrupt)):
        trainer.fit()
    again = surestep.Task(model(), nn.CrossEntropyLoss(), train=(X, Y), val=VAL["a"])
    run = surestep.Trainer(again, config_of(), run="run").fit()
    assert_same(plain, evaluations(run, "val/loss"))
    found = read_measurements(run)
    assert_same(plain, {step: values["val/loss"] for step, values in found.evaluations.items()})


def test_limited_validation_measures_the_first_batches_for_every_kind_of_metric() -> None:
    net = model()
    metrics = {
        "mean": lambda o, t: o.abs().mean(),
        "pair": lambda o, t: (o.abs().sum(), o.numel()),
        "rows": surestep.whole_set(lambda o, t: float(len(o))),
    }
    task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=VAL, metrics=metrics)
    session = prepare(task, config_of(limit_val_batches=2))
    ours = session.evaluate()
    for name, (x, y) in VAL.items():
        with torch.no_grad():
            outputs = net(x[:8])
        size = float(outputs.abs().mean())
        plain = [float(functional.cross_entropy(outputs, y[:8])), size, size, 8.0]
        names = ("loss", "mean", "pair", "rows")
        assert_same(plain, [ours[f"{name}/{metric}"] for metric in names])


def test_evaluation_of_the_best_checkpoint_repeats_its_metrics() -> None:
    net = model()
    kept: dict[int, Any] = {}
    plain = by_hand(copy.deepcopy(net), 6, lambda n: [loss_of(n, "a"), weights(n)])
    best = min(plain, key=lambda step: plain[step][0])
    task = surestep.Task(
        net,
        surestep.losses.multiclass(weight="balanced"),
        train=(X, Y),
        val=VAL,
        test=(X[11:20], Y[11:20]),
    )
    counts = torch.bincount(Y).double()
    balanced = counts.sum() / (3 * counts)

    def weighted(n: nn.Module, x: Tensor, y: Tensor) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(n(x), y, balanced))

    trainer = surestep.Trainer(task, config_of(), run="run")
    run = trainer.fit()
    loaded = model()
    run.load_model(loaded, which="best")
    kept["test/loss"] = weighted(loaded, X[11:20], Y[11:20])
    assert_same(kept, trainer.evaluate("test"))
    plain_val = {f"{name}/loss": weighted(loaded, x, y) for name, (x, y) in VAL.items()}
    assert_same(plain_val, trainer.evaluate("a") | trainer.evaluate("b"))
    assert_same(plain_val, dict(run.best.metrics))
    assert best in plain


def test_average_and_weights_are_both_measured_with_their_own_metrics() -> None:
    net = model()
    plain_net, average = copy.deepcopy(net), copy.deepcopy(net)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.5)
    for step, (x, y) in enumerate(in_batches(7, X, Y), 1):
        optimizer.zero_grad()
        functional.cross_entropy(plain_net(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), plain_net.parameters(), strict=True):
                mean.copy_(value if step == 1 else 0.9 * mean + 0.1 * value)
    task = surestep.Task(
        net,
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val=VAL,
        metrics={"size": surestep.whole_set(lambda o, t: o.abs().mean())},
    )
    config = config_of(
        epochs=1,
        average={"kind": "ema", "decay": 0.9, "warmup": False},
        validation={"weights": "both"},
    )
    session = prepare(task, config)
    for _ in session.steps():
        pass
    ours = session.evaluate()
    for name, (x, _) in VAL.items():
        for prefix, measured in {name: average, f"{name}_raw": plain_net}.items():
            with torch.no_grad():
                size = float(measured(x).abs().mean())
            plain = [loss_of(measured, name), size]
            assert_same(plain, [ours[f"{prefix}/loss"], ours[f"{prefix}/size"]])
