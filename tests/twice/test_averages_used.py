"""Averages: what they are used for, and models whose weights are not plain parameters."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import SWALR, AveragedModel

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights
from tests.twice.test_averages import (
    EVEN,
    LR,
    TRAIN,
    VAL,
    config,
    ema,
    evaluations,
    fit,
    loss_of,
    make_moving,
    make_net,
    saved,
    steps_by_hand,
)

EMA = {"kind": "ema", "decay": 0.8, "warmup": False}


def test_both_are_evaluated_and_the_raw_weights_decide() -> None:
    net, raw, averaged, best = make_net(), {}, {}, {}
    average = ema(net, 0.8)
    for step in steps_by_hand(net, 6, lr=0.75):
        average.update_parameters(net)
        if step % 3 == 0:
            raw[step], averaged[step] = loss_of(net), loss_of(average)
            if raw[step] == min(raw.values()):
                best = weights(net)
    both = {"weights": "both", "metric": "val_raw/loss", "every": "3 steps"}
    run = fit(make_net(), EMA, validation=both, epochs=6, optim={"lr": 0.75})

    assert_same(raw, evaluations(run, "val_raw/loss"))
    assert_same(averaged, evaluations(run))
    assert run.best.step == min(raw, key=raw.__getitem__)
    assert_same(best, saved(run, "best", make_net))


def test_patience_and_plateaus_follow_the_average() -> None:
    net, seen, best, bad, scale = make_net(), {}, np.inf, 0, 1.0
    average = ema(net, 0.8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.75)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, threshold=0.1
    )
    step = 0
    for _ in range(12):
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            average.update_parameters(net)
            step += 1
        seen[step] = loss_of(average)
        plateau.step(seen[step])
        best, bad = (seen[step], 0) if seen[step] < best - 0.001 else (best, bad + 1)
        scale = optimizer.param_groups[0]["lr"] / 0.75
        if bad >= 3:
            break
    run = fit(
        make_net(),
        EMA,
        epochs=12,
        optim={"lr": 0.75},
        early_stop={"patience": 3, "min_delta": 0.001},
        schedule={"name": "reduce_on_plateau", "factor": 0.5, "patience": 0, "threshold": 0.1},
    )

    assert scale < 1
    assert_same(seen, evaluations(run))
    assert_same(weights(net), saved(run, "last", make_net))


def test_weights_before_the_first_update_are_evaluated_as_they_are() -> None:
    net, seen = make_net(), {0: loss_of(make_net())}
    average = ema(net, 0.8)
    for step in steps_by_hand(net, 3):
        if step > 9:
            average.update_parameters(net)
        if step % 3 == 0:
            seen[step] = loss_of(net if step <= 9 else average)
    validation = {"every": "3 steps", "on_start": True}
    run = fit(make_net(), EMA | {"start": "9 steps"}, validation=validation)

    assert_same(seen, evaluations(run))
    steps = sorted(seen)
    assert run.best.step == min(steps, key=seen.__getitem__)


def test_skipped_step_does_not_update_the_average_or_its_buffers() -> None:
    x = EVEN[0].clone()
    x[16] = torch.nan  # in batch 3 of 5
    net, step = make_moving(), 0
    average = ema(net, 0.8, use_buffers=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(3):
        for a, b in in_batches(7, x, EVEN[1]):
            step += 1
            if not a.isfinite().all():
                continue
            optimizer.zero_grad()
            nn.functional.mse_loss(net(a), b).backward()
            optimizer.step()
            average.update_parameters(net)
    average.module.count.copy_(net.count)
    average.module.norm.num_batches_tracked.copy_(net.norm.num_batches_tracked)
    average.module.mask.copy_(net.mask)
    ours = make_moving()
    task = surestep.Task(ours, nn.MSELoss(), train=(x, EVEN[1]), val=VAL)
    session = prepare(task, config(EMA, on_nonfinite="skip"))
    list(session.steps())

    assert session.state.counts.nonfinite == 3
    assert_same(weights(net), weights(ours))
    assert_same(loss_of(average), session.evaluate()["val/loss"])


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_normalized_weights_are_averaged_as_their_parameters(kind: str) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        first = parametrizations.weight_norm(nn.Linear(4, 5))
        last = parametrizations.orthogonal(nn.Linear(5, 5))
        return nn.Sequential(first, nn.Tanh(), last, nn.Linear(5, 1)).double()

    net, seen = make(), {}
    average = ema(net, 0.8) if kind == "ema" else AveragedModel(net)
    for step in steps_by_hand(net, 3):
        if kind == "ema" or step % 7 == 0:
            average.update_parameters(net)
        if step % 7 == 0:
            seen[step] = loss_of(average)
    run = fit(make(), EMA if kind == "ema" else {"kind": "swa", "start": 0})

    assert_same(seen, evaluations(run))


def test_predictions_are_those_of_the_average_and_then_training_goes_on() -> None:
    net, plain = make_net(), {}
    average = ema(net, 0.8)
    for step in steps_by_hand(net, 3):
        average.update_parameters(net)
        if step == 10:
            with torch.no_grad():
                plain = average(VAL[0]).clone()
    ours = make_net()
    task = surestep.Task(ours, nn.MSELoss(), train=TRAIN, val=VAL)
    session, found = prepare(task, config(EMA)), None
    for result in session.steps():
        if result.step == 10:
            found = session.predict("val")["output"]

    assert found is not None
    assert_same(plain, torch.as_tensor(np.array(found)))
    assert_same(weights(net), weights(ours))


def test_rate_of_the_mean_is_a_share_of_each_groups_rate() -> None:
    """SWALR with a rate for each group, as a group at half the rate has half of average.lr."""
    net: Any = make_net()
    parts = [{"params": net[0].parameters()}, {"params": net[2].parameters(), "lr": 0.25 * LR}]
    optimizer = torch.optim.SGD(parts, lr=0.5 * LR)
    average, step, swa = AveragedModel(net), 0, None
    for epoch in range(4):
        if epoch == 2:
            swa = SWALR(optimizer, [0.5 * 0.02, 0.25 * 0.02], anneal_epochs=3)
        for x, y in in_batches(7, *TRAIN):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            step += 1
            if swa is not None:
                swa.step()
        if epoch >= 2:
            average.update_parameters(net)
    averaging = {"kind": "swa", "start": "2 epochs", "lr": 0.02, "anneal": "3 steps"}
    groups = {"lr": LR, "groups": ["0 lr=0.5x", "2 lr=0.25x"]}
    ours = make_net()
    run = fit(ours, averaging, epochs=4, optim=groups)

    assert_same(weights(net), weights(ours))
    assert_same(weights(average.module), saved(run, "average", make_net))


def test_normalization_that_is_kept_in_eval_mode_keeps_its_statistics_in_a_mean() -> None:
    def make() -> Any:
        torch.manual_seed(0)
        net: Any = nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.BatchNorm1d(5), nn.Linear(5, 1)
        ).double()
        net[1].running_mean += torch.linspace(-1, 1, 5)
        return net

    net, step = make(), 0
    average = AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    for _ in range(3):
        for x, y in in_batches(7, *EVEN):
            net.train()
            net[1].eval()
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
            step += 1
        average.update_parameters(net)
    means, second = [], []
    with torch.no_grad():
        inner: Any = copy.deepcopy(average.module).eval()
        for (x,) in in_batches(7, EVEN[0]):
            hidden = inner[2](inner[1](inner[0](x)))
            means.append(hidden.mean(dim=0))
            second.append(hidden.var(dim=0))
        inner[3].running_mean.copy_(torch.stack(means).mean(dim=0))
        inner[3].running_var.copy_(torch.stack(second).mean(dim=0))
    plain = loss_of(inner)
    ours = make()
    run = fit(ours, {"kind": "swa", "start": 0}, EVEN, task={"keep_eval": [ours[1]]})

    assert_same(plain, evaluations(run)[15])
    assert_same(weights(net), weights(ours))


def test_several_optimizers_have_one_average_of_all_weights() -> None:
    net: Any = make_net()
    average, step, seen = ema(net, 0.8), 0, {}
    one = torch.optim.SGD(net[0].parameters(), lr=0.03)
    two = torch.optim.SGD(net[2].parameters(), lr=0.2)
    for _ in range(2):
        for x, y in in_batches(7, *TRAIN):
            one.zero_grad()
            two.zero_grad()
            nn.functional.mse_loss(net(x), y).backward()
            one.step()
            if step % 2 == 0:
                two.step()
            average.update_parameters(net)
            step += 1
        seen[step] = loss_of(average)

    def manual(m: Any) -> None:
        names = ("0", "2") if m.index % 2 == 0 else ("0",)
        for micro in m.micro_batches(*names):
            m.backward(nn.functional.mse_loss(m.model(*micro.args), micro.targets), micro)
        for name in names:
            m.step(name)

    optimizers = {
        name: surestep.Optim(name="sgd", lr=lr, weight_decay=0.0)
        for name, lr in (("0", 0.03), ("2", 0.2))
    }
    task = surestep.Task(
        make_net(), nn.MSELoss(), train=TRAIN, val=VAL, step=manual, optimizers=optimizers
    )
    options: Any = {
        **{"epochs": 2, "batch_size": 7, "micro_batch_size": 3, "max_grad_norm": None},
        **{"data": {"shuffle": False}, "logging": {"progress": "quiet"}},
    }
    run = surestep.Trainer(task, surestep.Config(**options, average=EMA), run="run").fit()

    assert_same(seen, evaluations(run))
    assert_same(weights(average.module), saved(run, "average", make_net))


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_average_that_is_switched_on_starts_with_the_weights_of_the_checkpoint(kind: str) -> None:
    """Its first update is at step 14: 14 earlier ones are not made up; a later resume continues."""
    net, history = make_net(), []
    for step in steps_by_hand(net, 4):
        if step >= 14:
            history.append(weights(net))
    average = history[0]
    for count, now in enumerate(history[1:], start=1):
        keep = count / (count + 1) if kind == "swa" else min(0.8, (1 + count) / (10 + count))
        average = {name: keep * average[name] + (1 - keep) * now[name] for name in now}
    switched: Any = {"kind": kind, "start": 0, "every": "1 step"}
    switched |= {"decay": 0.8} if kind == "ema" else {}
    for epochs, averaging in ((2, None), (3, switched), (4, switched)):
        task = surestep.Task(make_net(), nn.MSELoss(), train=TRAIN, val=VAL)
        changes = ("average", "epochs", "validation")
        options = config(averaging, epochs=epochs)
        run = surestep.Trainer(task, options, run="run", allow=changes).fit()

    assert_same(average, saved(run, "average", make_net))


class Phases(nn.Module):
    """Complex weights, and a complex buffer that is replaced in each step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        self.last = nn.Linear(3, 1)
        self.register_buffer("mean", torch.ones(3, dtype=torch.complex64))

    def forward(self, x: Any) -> Any:
        hidden = x.to(torch.complex64) @ self.first
        if self.training:
            self.mean = (0.8 * self.mean + 0.2 * hidden.mean(dim=0)).detach()
        return self.last((hidden - self.mean).abs())


def make_phases() -> Any:
    torch.manual_seed(0)
    return Phases()


def test_complex_weights_and_buffers_are_averaged() -> None:
    data, net = (EVEN[0].float(), EVEN[1].float()), make_phases()
    average = ema(net, 0.8, use_buffers=True)
    for _ in steps_by_hand(net, 2, data, lr=0.02):
        average.update_parameters(net)
    run = fit(make_phases(), EMA, data, epochs=2, optim={"lr": 0.02}, val=data)
    ours = saved(run, "average", make_phases)

    for name, value in weights(average.module).items():
        as_real = torch.view_as_real if value.is_complex() else (lambda tensor: tensor)
        assert_same(as_real(value), as_real(ours[name]))


def test_value_of_an_object_on_the_raw_weights_of_the_second_set_decides() -> None:
    class Off:
        """The sum of distances, as one of the values of an object."""

        higher_is_better = False

        def reset(self) -> None:
            self.total = 0.0

        def update(self, outputs: Any, targets: Any) -> None:
            self.total += float((outputs - targets).abs().sum())

        def compute(self) -> dict[str, float]:
            return {"sum": self.total}

    net, seen = make_net(), {}
    for step in steps_by_hand(net, 5, lr=0.75):
        if step % 3 == 0:
            with torch.no_grad():
                seen[step] = float((net(EVEN[0]) - EVEN[1]).abs().sum())
    raw = {"weights": "both", "metric": "two_raw/off_sum", "mode": "min", "every": "3 steps"}
    run = fit(
        make_net(),
        EMA,
        val={"one": VAL, "two": EVEN},
        task={"metrics": {"off": Off()}},
        validation=raw,
        epochs=5,
        optim={"lr": 0.75},
    )
    found = evaluations(run, "two_raw/off_sum")

    assert_same(seen, {step: found[step] for step in seen})
    assert run.best.step == min(found, key=found.__getitem__)


class Aliased(nn.Module):
    """An autoencoder that keeps the transposed weight of its encoder, which is a view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.last = nn.Linear(4, 5, bias=False).double(), nn.Linear(4, 1).double()
        self.back = self.encoder.weight.data.t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.encoder(x)) @ self.back.t())


def test_view_of_a_weight_has_the_average_in_evaluations() -> None:
    x = torch.randn(17, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = x[:, :1] - x[:, 1:2]
    net = Aliased()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    average = AveragedModel(net, multi_avg_fn=ema(net, 0.8).multi_avg_fn)
    for _ in range(3):
        for a, b in in_batches(7, x, y):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(a), b).backward()
            optimizer.step()
            average.update_parameters(net)
    with torch.no_grad():
        raw = float(nn.functional.mse_loss(net(x), y))
        for weight, averaged in zip(net.parameters(), average.parameters(), strict=True):
            weight.copy_(averaged)  # the copy in AveragedModel has no view of its weight
        plain = float(nn.functional.mse_loss(net(x), y)), raw

    own = Aliased()
    task = surestep.Task(own, nn.MSELoss(), train=(x, y), val=(x, y))
    session = prepare(task, plain_config(epochs=3, batch_size=7, average=EMA))
    for _ in session.steps():
        pass
    ours = session.evaluate()["val/loss"]
    with torch.no_grad():
        after = float(nn.functional.mse_loss(own.eval()(x), y))

    assert abs(plain[0] - plain[1]) > 1e-4
    assert_same(plain, (ours, after))
