"""Fine-tuning and schedules as people write them: adapters, freezing, rates, averages."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, OneCycleLR

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, seed_of, weights

GENERATOR = torch.Generator().manual_seed(19)
X = torch.randn(31, 5, generator=GENERATOR, dtype=torch.float64)
Y = torch.randint(0, 3, (31,), generator=GENERATOR)
VAL, VAL_Y = X[:11] + 0.1, Y[:11]
UNSET = surestep.NOT_SET


class LoRA(nn.Module):
    """A frozen layer beside a trained product of two small matrices; eval mode merges them."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        torch.manual_seed(2)
        self.a = nn.Parameter(torch.randn(2, layer.in_features, dtype=torch.float64) / 3)
        self.b = nn.Parameter(torch.zeros(layer.out_features, 2, dtype=torch.float64))

    def train(self, mode: bool = True) -> "LoRA":
        if mode != self.training:
            sign = -1.0 if mode else 1.0
            self.layer.weight.data.add_(self.b.data @ self.a.data, alpha=sign * 0.5)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return out + 0.5 * (x @ self.a.T @ self.b.T) if self.training else out


def pretrained() -> nn.Sequential:
    """Return a network as it comes from a file."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh())
    return net.append(nn.Linear(7, 3)).double()


def adapted() -> nn.Sequential:
    """Return the network with adapters in two layers and a new head that is trained fully."""
    net = pretrained().requires_grad_(False)
    net[0], net[3] = LoRA(net[0]), LoRA(net[3])  # type: ignore[arg-type]
    torch.manual_seed(3)
    net[5] = nn.Linear(7, 3).double()
    return net


def steps_of(session: Any, every: int) -> tuple[list[float], list[float]]:
    """Take all steps and evaluate after each epoch."""
    losses, validated = [], []
    for result in session.steps():
        losses.append(float(result.loss))
        if result.step % every == 0:
            validated.append(session.evaluate()["val/loss"])
    return losses, validated


def validate(net: nn.Module) -> float:
    """Return the loss of the validation set, in eval mode."""
    net.eval()
    with torch.no_grad():
        value = F.cross_entropy(net(VAL), VAL_Y).item()
    net.train()
    return value


def test_adapters_that_are_merged_in_eval_mode_and_decay_alone() -> None:
    net = adapted()
    trained = [p for p in net.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() > 1]
    others = [p for p in trained if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=0.02,
    )
    losses, validated = [], []
    for _ in range(2):
        for x, y in in_batches(6, X, Y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(trained, 0.5)
            optimizer.step()
            losses.append(loss.item())
        validated.append(validate(net))

    ours_net = adapted()
    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y), val=(VAL, VAL_Y))
    adam = {"name": "adamw", "lr": 0.02, "weight_decay": 0.1, "momentum": UNSET}
    config = plain_config(epochs=2, batch_size=6, micro_batch_size=4, max_grad_norm=0.5, optim=adam)
    ours = steps_of(prepare(task, config), 6)

    assert_same([losses, validated, weights(net)], [*ours, weights(ours_net)])
    assert_same(weights(pretrained()[3])["bias"], weights(ours_net)["3.layer.bias"], exact=True)


def test_layers_are_unfrozen_from_the_head_down_with_discriminative_rates() -> None:
    net = pretrained()
    rates = {0: 0.01, 1: 0.01, 3: 0.03, 5: 0.1}
    losses, validated, moments = [], [], {}
    for epoch in range(3):
        open_layers = [5] if epoch == 0 else [3, 5] if epoch == 1 else [0, 1, 3, 5]
        for i in rates:
            net[i].requires_grad_(i in open_layers)
        for x, y in in_batches(6, X, Y):
            net.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            trained = [p for p in net.parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(trained, 0.3)
            with torch.no_grad():
                for i in open_layers:
                    for p in net[i].parameters():
                        old = moments.get(p)
                        moments[p] = p.grad.clone() if old is None else 0.9 * old + p.grad
                        p.sub_(rates[i] * moments[p])
            losses.append(loss.item())
        validated.append(validate(net))

    ours_net = pretrained()
    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y), val=(VAL, VAL_Y))
    groups = [
        surestep.ParamGroup("0", lr=0.01, freeze="2 epochs"),
        surestep.ParamGroup("1", lr=0.01, freeze="2 epochs"),
        surestep.ParamGroup("3", lr="0.3x", freeze="1 epoch"),
    ]
    config = plain_config(
        epochs=3,
        batch_size=6,
        micro_batch_size=4,
        max_grad_norm=0.3,
        optim={"lr": 0.1, "momentum": 0.9, "groups": groups},
        validation={"batch_size": 3},
    )
    ours = steps_of(prepare(task, config), 6)

    assert_same([losses, validated, weights(net)], [*ours, weights(ours_net)])


def normalized() -> nn.Sequential:
    """Return a network with BatchNorm."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 7, bias=False), nn.BatchNorm1d(7), nn.ReLU())
    return net.append(nn.Linear(7, 3)).double()


@pytest.mark.parametrize("resume", [False, True])
def test_mean_of_the_weights_of_the_last_epochs_with_new_statistics(resume: bool) -> None:
    x, y = X[:29], Y[:29]
    net = normalized()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    mean = torch.optim.swa_utils.AveragedModel(net)
    for epoch in range(5):
        for part in torch.arange(29).split(7):
            if len(part) == 1:
                continue
            optimizer.zero_grad()
            F.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()
            scheduler.step()
        if epoch >= 3:
            mean.update_parameters(net)
    torch.optim.swa_utils.update_bn([(x[i : i + 7],) for i in range(0, 28, 7)], mean)
    plain = [validate(mean), validate(net)]

    ours_net = normalized()
    for stop in (11, 100) if resume else (100,):
        ours_net = normalized()
        task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(x, y), val=(VAL, VAL_Y))
        config = plain_config(
            epochs=5,
            batch_size=7,
            schedule="cosine",
            data={"drop_last": True},
            optim={"lr": 0.2, "momentum": 0.9},
            average={"kind": "swa", "start": "3 epochs"},
            validation={"weights": "both", "batch_size": 4},
        )
        with surestep.prepare(task, config, run="run") as session:
            for result in session.steps():
                if result.step == stop:
                    session.save()
                    break
            else:
                found = session.evaluate()

    assert_same(plain, [found["val/loss"], found["val_raw/loss"]])
    assert_same(weights(net), weights(ours_net))


def test_rates_restart_in_every_iteration_and_the_best_cycle_is_kept() -> None:
    net = pretrained()
    optimizer = torch.optim.SGD(
        [{"params": net[:4].parameters(), "lr": 0.02}, {"params": net[4:].parameters()}], lr=0.1
    )
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=4, T_mult=2)
    losses, rates = [], []
    for _ in range(3):
        for x, y in in_batches(7, X, Y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            rates.append([group["lr"] for group in optimizer.param_groups])
            scheduler.step()
            losses.append(loss.item())

    seen: list[dict[float, None]] = []

    class See(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> None:
            seen.append(dict.fromkeys(group["lr"] for group in state.optimizer.param_groups))

    ours_net = pretrained()
    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y))
    config = plain_config(
        epochs=3,
        batch_size=7,
        schedule={"name": "cosine_restarts", "T_0": "4 steps", "T_mult": 2},
        optim={"groups": [f"{i} lr=0.02" for i in (0, 1, 3)]},
    )
    session = prepare(task, config, callbacks=[See()])
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])
    assert_same([sorted(each) for each in rates], [sorted(each) for each in seen])


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_one_cycle_of_rate_and_momentum_with_three_phases(name: str) -> None:
    net = pretrained()
    if name == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            net.parameters(), lr=0.3, momentum=0.9, nesterov=True
        )
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.3, weight_decay=0.0, eps=1e-3)
    scheduler = OneCycleLR(
        optimizer, 0.3, total_steps=15, pct_start=0.4, three_phase=True, div_factor=10
    )
    losses = []
    for _ in range(3):
        for x, y in in_batches(7, X, Y):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())

    ours_net = pretrained()
    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y))
    sgd = {"lr": 0.3, "momentum": 0.9, "nesterov": True}
    adam = {"name": "adamw", "lr": 0.3, "momentum": UNSET, "eps": 1e-3}
    config = plain_config(
        epochs=3,
        batch_size=7,
        micro_batch_size=3,
        schedule={
            "name": "one_cycle",
            "warmup": None,
            "pct_start": 0.4,
            "three_phase": True,
            "div_factor": 10,
        },
        optim=sgd if name == "sgd" else adam,
    )
    session = prepare(task, config)
    ours = [float(result.loss) for result in session.steps()]

    assert_same([losses, weights(net)], [ours, weights(ours_net)])


class Dropped(nn.Module):
    """Blocks that are left out at random in training, by a generator of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.head = nn.Linear(5, 3)
        self.draws = torch.Generator().manual_seed(5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            keep = 1 - 0.2 * i
            if not self.training:
                x = x + keep * block(x).tanh()
            elif float(torch.rand((), generator=self.draws)) < keep:
                x = x + block(x).tanh()
        return self.head(x)


def test_stochastic_depth_by_an_own_generator_is_the_same_after_a_resume() -> None:
    whole: dict[int, float] = {}
    for run, stops in (("whole", (100,)), ("parts", (3, 4, 100))):
        ours: dict[int, float] = {}
        for stop in stops:
            net = Dropped()
            task = surestep.Task(net, nn.CrossEntropyLoss(), train=(X, Y), val=(VAL, VAL_Y))
            config = plain_config(epochs=2, batch_size=6)
            with surestep.prepare(task, config, run=run) as session:
                for result in session.steps():
                    ours[result.step] = float(result.loss)
                    if run == "parts":
                        session.evaluate()
                    if result.step == stop:
                        session.save()
                        break
        last = weights(net)
        if not whole:
            whole, expected = ours, last

    assert_same([whole, expected], [ours, last], exact=True)
    rates = [1 - 0.2 * i for i in range(4)]
    with torch.no_grad():
        x = VAL
        for keep, block in zip(rates, net.blocks, strict=True):
            x = x + keep * block(x).tanh()
        value = F.cross_entropy(net.head(x), VAL_Y).item()
    assert_same(value, validate(net))


def test_warm_up_then_plateaus_with_the_best_weights_loaded_at_the_end() -> None:
    net = pretrained()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    best, kept, validated = math.inf, {}, []
    for _ in range(6):
        for x, y in in_batches(7, X, Y):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        value = validate(net)
        plateau.step(value)
        validated.append(value)
        if value < best:
            best, kept = value, copy.deepcopy(net.state_dict())

    seen: list[float] = []

    class See(surestep.Callback):
        def on_evaluate(self, state: Any, metrics: dict[str, float]) -> None:
            seen.append(metrics["val/loss"])

    ours_net = pretrained()
    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y), val=(VAL, VAL_Y))
    config = plain_config(
        epochs=6,
        batch_size=7,
        schedule={"name": "reduce_on_plateau", "factor": 0.5, "patience": 0},
        optim={"lr": 0.5, "momentum": 0.9},
        validation={"batch_size": 4},
    )
    run = surestep.Trainer(task, config, run="runs/plateau", callbacks=[See()]).fit()
    assert_same([validated, weights(net)], [seen, weights(ours_net)])
    loaded = pretrained()
    run.load_model(loaded, which="best")
    assert_same(kept, weights(loaded))


def test_dropout_of_a_sequence_of_micro_batches_is_that_of_each_position() -> None:
    net = pretrained().insert(3, nn.Dropout(0.4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(in_batches(7, X, Y)):
        optimizer.zero_grad()
        for at in range(0, len(x), 3):
            torch.manual_seed(seed_of("model", 0, step, 7 * step + at))
            part = F.cross_entropy(net(x[at : at + 3]), y[at : at + 3], reduction="sum")
            (part / len(x)).backward()
        optimizer.step()

    ours_net = pretrained().insert(3, nn.Dropout(0.4))
    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y))
    session = prepare(task, plain_config(epochs=1, batch_size=7, micro_batch_size=3))
    for _ in session.steps():
        pass

    assert_same(weights(net), weights(ours_net))
