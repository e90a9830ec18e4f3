"""Predictions: a row for each sample, in stored order, of the weights that are asked for."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import surestep
from tests.twice.compare import (
    assert_same,
    in_batches,
    plain_config,
    prepare,
    seed_of,
    train,
    weights,
)

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(29, 4, generator=GENERATOR, dtype=torch.float64)
Z = torch.randn(29, 2, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 3, (29,), generator=GENERATOR)


def tensors(found: Any) -> dict[str, Tensor]:
    """Return the arrays of predictions as tensors."""
    return {name: torch.from_numpy(np.array(array)) for name, array in found.arrays.items()}


def test_predictions_are_in_stored_order_after_shuffled_training_with_samplers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, 3))
    task = surestep.Task(
        model.double(),
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val=DataLoader(TensorDataset(X[:13], Y[:13]), batch_size=4, shuffle=True),
        test=DataLoader(TensorDataset(X[13:], Y[13:]), batch_size=5, drop_last=True),
        sampler=surestep.samplers.weighted(torch.arange(29).double()),
    )
    session = train(task, plain_config(epochs=1, batch_size=6, data={"shuffle": surestep.NOT_SET}))
    model.eval()
    with torch.no_grad():
        outputs = model(X)
    model.train()

    for split, rows in (("train", slice(0, 29)), ("val", slice(0, 13)), ("test", slice(13, 29))):
        plain = {
            "index": torch.arange(len(Y[rows])),
            "output": outputs[rows],
            "prediction": outputs[rows].argmax(dim=1),
            "target": Y[rows],
        }
        assert_same(plain, tensors(session.predict(split)))


def test_monte_carlo_dropout_equals_its_passes_by_hand() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3))
    task = surestep.Task(model.double(), nn.CrossEntropyLoss(), train=(X, Y), val=(X, Y))
    config = plain_config(epochs=1, batch_size=6, validation={"batch_size": 7})
    session = train(task, config)
    ours = tensors(session.predict("val", mc_dropout=5))

    model.eval()
    model[2].train()
    passes = []
    with torch.no_grad():
        for number in range(1, 6):
            rows = []
            for first in range(0, 29, 7):
                torch.manual_seed(seed_of("evaluate", 0, first, number, "val"))
                rows.append(model(X[first : first + 7]))
            passes.append(torch.cat(rows))
    outputs = torch.stack(passes)
    chance = outputs.softmax(dim=2).mean(dim=0)
    plain = {
        "index": torch.arange(29),
        "output": outputs.mean(dim=0),
        "spread": outputs.std(dim=0),
        "probability": chance,
        "prediction": chance.argmax(dim=1),
        "entropy": -(chance * chance.log()).sum(dim=1),
        "target": Y,
    }

    assert_same(plain, ours)


class Parts(NamedTuple):
    """What the nested model returns."""

    mean: Tensor
    extra: tuple[Tensor, dict[str, Tensor]]


class Nested(nn.Module):
    """Returns nested outputs of several dtypes."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)).to(dtype)

    def forward(self, x: Tensor) -> Parts:
        out = self.net(x)
        return Parts(out, (out > 0, {"wave": torch.polar(out.abs(), out), "rank": out.argsort(1)}))


def mean_error(outputs: Parts, targets: Tensor) -> Tensor:
    """Return the mean error of one part."""
    return (outputs.mean - targets).square().mean(dim=1).mean()


def test_nested_outputs_keep_their_values_and_dtypes() -> None:
    model = Nested()
    task = surestep.Task(model, mean_error, train=(X, Z), val=(X[:15], Z[:15]))
    session = prepare(task, plain_config(epochs=1, batch_size=7, validation={"batch_size": 7}))
    model.eval()
    with torch.no_grad():
        out = model(X[:15])
    plain = {
        "index": torch.arange(15),
        "output_mean": out.mean,
        "output_extra_0": out.extra[0],
        "output_extra_1_wave": out.extra[1]["wave"],
        "output_extra_1_rank": out.extra[1]["rank"],
        "target": Z[:15],
    }
    ours = tensors(session.predict("val"))

    assert_same(plain, ours)
    assert {name: t.dtype for name, t in plain.items()} == {n: t.dtype for n, t in ours.items()}


def test_monte_carlo_dropout_of_complex_outputs_keeps_their_phase() -> None:
    model = Nested()
    task = surestep.Task(model, mean_error, train=(X, Z), val=(X, Z))
    session = prepare(task, plain_config(epochs=1, batch_size=29, validation={"batch_size": 29}))
    ours = tensors(session.predict("val", mc_dropout=4))

    model.eval()
    model.net[1].train()
    passes = []
    with torch.no_grad():
        for number in range(1, 5):
            torch.manual_seed(seed_of("evaluate", 0, 0, number, "val"))
            passes.append(model(X).extra[1]["wave"])
    waves = torch.stack(passes)

    assert_same(waves.mean(dim=0), ours["output_extra_1_wave"])
    assert_same(waves.std(dim=0), ours["spread_extra_1_wave"])


class Heads(nn.Module):
    """Two heads of a trunk."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk, self.kind, self.size = nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(5, 2)
        self.double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = torch.tanh(self.trunk(x))
        return {"kind": self.kind(features), "size": self.size(features), "features": features}


def test_several_heads_are_evaluated_and_predicted_by_name() -> None:
    kinds = Y.clone()
    kinds[3:9] = -100
    model = Heads()
    data = {"x": X, "kind": kinds, "size": Z}
    val = {name: value[:8] for name, value in data.items()}
    task = surestep.Task(
        model,
        {"kind": nn.CrossEntropyLoss(), "size": nn.MSELoss()},
        loss_weights={"kind": 0.3},
        train=data,
        val=val,
        test={"x": X[8:]},
    )
    session = train(task, plain_config(epochs=1, batch_size=7, validation={"batch_size": 7}))
    with torch.no_grad():
        out = model(X)
        kind = F.cross_entropy(out["kind"][:8], kinds[:8]).item()
        size = F.mse_loss(out["size"][:8], Z[:8]).item()
    ours = session.evaluate()
    found = tensors(session.predict("test"))

    assert_same({"val/loss": 0.3 * kind + size, "val/loss_kind": kind, "val/loss_size": size}, ours)
    assert_same(
        {"index": torch.arange(21)} | {f"output_{name}": part[8:] for name, part in out.items()},
        found,
    )
    assert_same(kinds[:8], tensors(session.predict("val"))["target_kind"])


def test_ready_batches_are_predicted_row_by_row() -> None:
    class Boxes(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            first = 0
            for size in (5, 1, 7, 3):
                yield X[first : first + size], Y[first : first + size]
                first += size

    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    task = surestep.Task(model, nn.CrossEntropyLoss(), train=Boxes(), val=Boxes(), batched=True)
    session = train(task, plain_config(max_steps=5))
    ours = tensors(session.predict("val"))
    with torch.no_grad():
        out = model(X[:16])

    assert_same(out, ours["output"])
    assert_same(Y[:16], ours["target"])
    assert_same(F.cross_entropy(out, Y[:16]).item(), session.evaluate()["val/loss"])


class Remembering(nn.Module):
    """A model that an evaluation could move: statistics, a power iteration, noise."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6))
        self.norm, self.drop, self.last = nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, 3)
        self.noise = torch.Generator().manual_seed(3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        shift = torch.randn(x.shape, generator=self.noise, dtype=x.dtype) + np.random.rand()
        return self.last(self.drop(torch.tanh(self.norm(self.first(x + 0.1 * shift)))))


def test_evaluations_and_predictions_in_an_epoch_change_nothing() -> None:
    runs = []
    for evaluates in (False, True):
        model = Remembering()
        task = surestep.Task(
            model,
            nn.CrossEntropyLoss(),
            train=(X, Y),
            val={"one": (X[:8], Y[:8]), "two": (X[8:21], Y[8:21])},
            test=(X[21:],),
        )
        config = plain_config(
            epochs=3,
            batch_size=8,
            micro_batch_size=5,
            optim={"momentum": 0.9},
            data={"shuffle": surestep.NOT_SET},
            average={"kind": "ema", "decay": 0.9},
            validation={"metric": "one/loss"},
        )
        session = prepare(task, config)
        losses: list[Any] = []
        for result in session.steps():
            losses.append(float(result.loss))
            if evaluates:
                if result.step == 2:
                    session.save()
                session.evaluate()
                session.evaluate("train")
                session.predict("test", mc_dropout=2)
                session.predict("two")
                if result.step > 2:
                    session.predict("test", "last")
                    session.evaluate_checkpoint("two", "average")
        runs.append([*losses, weights(model), session.state.average.tensors])

    assert_same(runs[0], runs[1], exact=True)


def test_checkpoints_that_are_evaluated_in_a_resumed_run_are_those_of_their_steps() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()

    plain_net = model()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        for x, y in in_batches(6, X, Y):
            optimizer.zero_grad()
            F.cross_entropy(plain_net(x), y).backward()
            optimizer.step()
            plain_net.eval()
            with torch.no_grad():
                losses.append(F.cross_entropy(plain_net(X[:8]), Y[:8]).item())
            plain_net.train()

    seen = []
    for stop in (3, 7, 100):
        task = surestep.Task(model(), nn.CrossEntropyLoss(), train=(X, Y), val=(X[:8], Y[:8]))
        config = plain_config(epochs=2, batch_size=6, optim={"lr": 0.5})
        with surestep.prepare(task, config, run="run") as session:
            for result in session.steps():
                session.evaluate()
                session.save()
                done = losses[: result.step]
                best = session.evaluate_checkpoint("val", "best")["val/loss"]
                assert_same(min(done), best)
                assert_same(done[-1], session.evaluate_checkpoint("val", "last")["val/loss"])
                seen.append(session.evaluate("val")["val/loss"])
                if result.step == stop:
                    break

    assert_same(losses, seen)


def test_best_average_has_the_loss_of_its_evaluation() -> None:
    for buffers in ("copy", "average", "recompute"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
        task = surestep.Task(model, nn.CrossEntropyLoss(), train=(X, Y), val=(X[:8], Y[:8]))
        config = plain_config(
            epochs=4,
            batch_size=6,
            optim={"lr": 0.5},
            average={"kind": "swa", "start": "2 steps", "every": "3 steps", "buffers": buffers},
            validation={"every": "2 steps"},
            checkpoint={"every": "1 step", "keep_last": 3},
        )
        trainer = surestep.Trainer(task, config, run=f"run-{buffers}")
        run = trainer.fit()
        found = [e for e in run.events() if e["event"] == "evaluation"]
        after = weights(model)
        best = trainer.evaluate("val")
        average = trainer.evaluate("val", which="average")
        last = trainer.evaluate("val", which="last")
        with torch.no_grad():
            plain = F.cross_entropy(model.eval()(X[:8]), Y[:8]).item()

        assert_same(min(e["metrics"]["val/loss"] for e in found), best["val/loss"])
        assert_same(found[-1]["metrics"]["val/loss"], average["val/loss"])
        assert_same(plain, last["val/loss"])
        assert_same(after, weights(model), exact=True)


def test_data_without_targets_is_predicted_whatever_the_loss() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    with torch.no_grad():
        plain = {"index": torch.arange(8), "output": model(X[21:])}
    prediction = {"prediction": plain["output"].argmax(dim=1)}
    losses = {
        nn.CrossEntropyLoss(): Y,
        nn.MultiLabelSoftMarginLoss(): F.one_hot(Y, 3).double(),
        surestep.losses.multiclass(): Y,
    }
    for loss, targets in losses.items():
        for test in ((X[21:],), DataLoader(X[21:], batch_size=3), [(x,) for x in X[21:]]):
            task = surestep.Task(model, loss, train=(X, targets), test=test)
            session = prepare(task, plain_config(epochs=1, batch_size=8))
            expected = plain if targets is not Y else plain | prediction
            assert_same(expected, tensors(session.predict("test")))


class TwoOfOneName(nn.Module):
    """Outputs whose names in a table of predictions are the same."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1).double()

    def forward(self, x: torch.Tensor) -> Any:
        """Return {"a": {"b": ...}} and {"a_b": ...}."""
        return {"a_b": self.linear(x), "a": {"b": 2 * self.linear(x)}}


def test_second_output_of_the_same_name_is_an_error() -> None:
    x = torch.randn(11, 4, dtype=torch.float64)

    def loss(outputs: Any, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(outputs["a_b"], y)

    task = surestep.Task(TwoOfOneName(), loss, train=(x, x[:, :1]))
    session = prepare(task, plain_config(max_steps=1, batch_size=7))
    with pytest.raises(surestep.SurestepError, match="'output_a_b'"):
        session.predict("train")
