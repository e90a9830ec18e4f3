"""Checkpoints in other models: what was evaluated is what is loaded, into any model of the kind."""

from collections import deque

import pytest
import torch
from torch import nn

import surestep
from surestep.trainer.evaluator import evaluate_run, predict_run
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

N = 47
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = (X[:, :1] - 2 * X[:, 1:2]).clone()
VAL, TEST = (X[:17], Y[:17]), (X[17:30], Y[17:30])


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(4, 1).double()


def error_of(net, data=VAL):
    """The mean squared error, computed by hand in eval mode."""
    net.eval()
    with torch.no_grad():
        return float(nn.functional.mse_loss(net(data[0]), data[1]))


def config_to(stop, **options):
    keep = {"every": "3 steps", "keep_last": 20}
    defaults = {"validation": {"every": 3}, "checkpoint": keep}
    return plain_config(max_steps=stop, batch_size=7, **(defaults | options))


class CentersLate(nn.Module):
    """Subtracts a running mean that does not exist in the first steps."""

    def __init__(self, persistent=True):
        super().__init__()
        self.linear = linear()
        self.register_buffer("mean", None, persistent=persistent)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.count += 1
            if self.count > 5:
                new = x.mean(0)
                self.mean = new if self.mean is None else 0.9 * self.mean + 0.1 * new
        return self.linear(x if self.mean is None else x - self.mean)


@pytest.mark.parametrize("persistent", [True, False])
def test_earlier_checkpoint_is_loaded_into_a_model_whose_buffers_were_filled_since(persistent):
    task = surestep.Task(CentersLate(persistent), nn.MSELoss(), train=(X, Y), val=VAL)
    run = surestep.Trainer(task, config_to(12), run="runs/late").fit()
    net = CentersLate(persistent)
    for step in (3, 12, 6, 3, 9, 3):
        loaded = run.load_model(net, which=step)
        assert_same(error_of(net), loaded.metrics["val/loss"])
        assert (net.mean is None) == (step == 3)


@pytest.mark.parametrize("persistent", [True, False])
def test_checkpoint_from_before_a_buffer_was_filled_is_evaluated_in_an_open_run(persistent):
    net = CentersLate(persistent)
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=VAL)
    config = config_to(12, validation={"mode": "max"})
    session = prepare(task, config, run="runs/open")
    for result in session.steps():
        if result.step in (3, 9):
            session.evaluate()
            session.save()
    before = weights(net)
    assert session.run.best.step == 3
    found = session.evaluate_checkpoint("val", "best")
    assert_same(session.run.best.metrics["val/loss"], found["val/loss"])
    assert_same(before, weights(net), exact=True)


class Adapter(nn.Module):
    """A frozen layer with a low-rank update, which eval mode merges into it."""

    def __init__(self):
        super().__init__()
        self.base = linear()
        self.base.weight.requires_grad_(False)
        self.up = nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
        self.down = nn.Parameter(torch.zeros(2, 4, dtype=torch.float64))
        self.merged = False

    def train(self, mode=True):
        if mode == self.merged:
            self.base.weight.data += (self.up.data @ self.down.data) * (-1 if mode else 1)
            self.merged = not mode
        return super().train(mode)

    def forward(self, x):
        out = self.base(x)
        return out if self.merged else out + x @ (self.up @ self.down).T


@pytest.mark.parametrize("average", [{}, {"kind": "ema", "decay": 0.9}])
def test_merged_adapter_is_loaded_in_either_mode(average):
    def make():
        sets = {"one": VAL, "two": TEST}
        return surestep.Task(Adapter(), nn.MSELoss(), train=(X, Y), val=sets, test=TEST)

    config = config_to(20, average=average, validation={"every": 3, "metric": "two/loss"})
    run = surestep.Trainer(make(), config, run="runs/merged").fit()
    for mode in (True, False):
        net = Adapter().train(mode)
        run.load_model(net)
        assert net.training is mode
        assert_same(run.best.metrics["one/loss"], error_of(net))
        assert_same(run.best.metrics["two/loss"], error_of(net, TEST))
    trainer = surestep.Trainer(make(), config, run="runs/merged")
    for which in ("best", "last", *(["average"] if average else [])):
        net = Adapter().eval()
        run.load_model(net, which=which)
        assert_same(error_of(net, TEST), trainer.evaluate("test", which=which)["test/loss"])
    trainer.close()


class Scaled(nn.Module):
    """A loss that divides by a running scale, and by its first value."""

    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("scale", torch.ones((), dtype=torch.float64), persistent=persistent)
        self.register_buffer("first", None)

    def forward(self, outputs, targets):
        loss = ((outputs - targets) ** 2).mean()
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * loss.detach()
            if self.first is None:
                self.first = loss.detach().clone()
        return loss / self.scale / (1 if self.first is None else self.first)


@pytest.mark.parametrize("persistent", [True, False])
def test_loss_with_running_scales_is_evaluated_in_eval_mode(persistent):
    def make():
        loss = Scaled(persistent)
        return surestep.Task(linear(), loss, train=(X, Y), val=VAL, loss_is_separable=False)

    config = config_to(16, validation={"every": 3, "batch_size": 17})
    run = surestep.Trainer(make(), config, run="runs/scaled").fit()
    plain, loss, values = linear(), Scaled(persistent), {}
    optimizer, step = torch.optim.SGD(plain.parameters(), lr=0.1), 0
    while step < 16:
        for x, y in in_batches(7, X, Y):
            optimizer.zero_grad()
            loss(plain(x), y).backward()
            optimizer.step()
            step += 1
            loss.eval()
            with torch.no_grad():
                values[step] = float(loss(plain(VAL[0]), VAL[1]))
            loss.train()
            if step == 16:
                break
    for which in (3, 6, 16, "best"):
        saved, found = evaluate_run(run, make(), config, split="val", which=which)
        assert_same(values[saved.step], saved.metrics["val/loss"])
        assert_same(values[saved.step], found["val/loss"])


class Normed(nn.Module):
    """A model with BatchNorm, a tied layer and a lazy one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 4).double(), nn.BatchNorm1d(4).double()
        self.second = nn.Linear(4, 4).double()
        self.second.weight = self.first.weight
        self.head = nn.LazyLinear(1, dtype=torch.float64)

    def forward(self, x):
        return self.head(self.second(self.norm(self.first(x))))


KINDS = [
    ({}, "auto"),
    ({"kind": "ema", "decay": 0.8}, "auto"),
    ({"kind": "swa", "start": "30%"}, "auto"),
    ({"kind": "ema", "decay": 0.8}, "both"),
    ({"kind": "swa", "start": "30%"}, "raw"),
]


@pytest.mark.parametrize(("average", "measured"), KINDS)
@pytest.mark.parametrize("keeps", [False, True])
def test_best_checkpoint_has_its_metrics_in_every_way_to_load_it(average, measured, keeps):
    def make():
        net = Normed()
        return surestep.Task(
            net,
            nn.MSELoss(),
            train=(X[:44], Y[:44]),
            val={"one": VAL, "two": TEST},
            keep_eval=[net.norm] if keeps else [],
        )

    validation = {"every": 3, "metric": "two/loss"} | (
        {} if measured == "auto" else {"weights": measured}
    )
    config = config_to(20, average=average, validation=validation)
    run = surestep.Trainer(make(), config, run="runs/normed").fit()
    wanted = {name: run.best.metrics[f"{name}/loss"] for name in ("one", "two")}
    fresh, used = Normed(), Normed()
    run.load_model(used, which="last")
    for net in (fresh, used):
        run.load_model(net)
        assert_same(wanted, {"one": error_of(net), "two": error_of(net, TEST)})
    _, found = evaluate_run(run, make(), config, split="val", which="best")
    assert_same(wanted, {name: found[f"{name}/loss"] for name in wanted})
    trainer = surestep.Trainer(make(), config, run="runs/normed")
    for name, data in (("one", VAL), ("two", TEST)):
        assert_same(wanted[name], trainer.evaluate(name)[f"{name}/loss"])
        ours = torch.tensor(trainer.predict(name)["output"])
        _, again = predict_run(run, make(), config, split=name)
        with torch.no_grad():
            plain = fresh(data[0])
        assert_same([plain, plain], [ours, torch.tensor(again["output"])])
    trainer.close()


def test_only_trained_weights_are_loaded_onto_the_same_base():
    def build():
        net = nn.Sequential(linear(0), nn.Tanh(), nn.Linear(1, 1).double())
        net[0].requires_grad_(False)
        return net

    task = surestep.Task(build(), nn.MSELoss(), train=(X, Y), val=VAL)
    keep = {"every": "3 steps", "keep_last": 20, "weights": "trained"}
    run = surestep.Trainer(task, config_to(9, checkpoint=keep), run="runs/trained").fit()
    net = build()
    for step in (9, 3, 6):
        assert_same(run.load_model(net, which=step).metrics["val/loss"], error_of(net))


class Remembers(nn.Module):
    """A model that keeps its last means as extra state, and a counter in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.linear, self.recent = linear(), deque(maxlen=3)

    def get_extra_state(self):
        return list(self.recent)

    def set_extra_state(self, state):
        self.recent = deque(state, maxlen=3)

    def forward(self, x):
        if self.training:
            self.recent.append(x.mean(0).detach())
        return self.linear(x - sum(self.recent) / 5 if self.recent else x)


def test_extra_state_is_loaded_and_restored_after_an_evaluation_of_a_checkpoint():
    net = Remembers()
    task = surestep.Task(net, nn.MSELoss(), train=(X, Y), val=VAL)
    trainer = surestep.Trainer(task, config_to(12, validation={"every": 3, "mode": "max"}), run="a")
    run = trainer.fit()
    before = list(net.recent)
    wanted = run.best.metrics["val/loss"]
    assert run.best.step < 12
    assert_same(wanted, trainer.evaluate("val")["val/loss"])
    assert_same(before, list(net.recent), exact=True)
    again = Remembers()
    run.load_model(again)
    assert_same(wanted, error_of(again))


def test_distilled_student_is_evaluated_with_its_teacher_in_every_way():
    labels = (X[:, :3].argmax(1), X[:17, :3].argmax(1))

    def make():
        torch.manual_seed(3)
        teacher = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double()
        net = nn.Linear(4, 3).double()
        sets = {"train": (X, labels[0]), "val": (X[:17], labels[1])}
        return surestep.Task(net, surestep.losses.distillation(), **sets, teacher=teacher)

    run = surestep.Trainer(make(), config_to(9), run="runs/student").fit()
    net = make().model
    run.load_model(net)
    with torch.no_grad():
        logits, teacher = net(X[:17]), make().teacher.eval()(X[:17])
        soft = nn.functional.kl_div(
            (logits / 2).log_softmax(1), (teacher / 2).softmax(1), reduction="batchmean"
        )
        plain = 0.5 * 4 * soft + 0.5 * nn.functional.cross_entropy(logits, labels[1])
    _, found = evaluate_run(run, make(), config_to(9), split="val", which="best")
    assert_same([float(plain)] * 2, [run.best.metrics["val/loss"], found["val/loss"]])
