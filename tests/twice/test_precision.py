"""Precision: autocast, loss scales, wide, mixed and complex dtypes equal a loop by hand."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, train, weights

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(53, 4, generator=GENERATOR)
Y = torch.randint(0, 3, (53,), generator=GENERATOR)
Z = torch.randn(53, 2, generator=GENERATOR)
ADAMW: dict[str, Any] = {"name": "adamw", "momentum": surestep.NOT_SET}


def net(outputs: int = 3) -> nn.Module:
    """Return a small model with a norm and a dropout of nothing."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, outputs))


def test_bf16_with_accumulation_equals_autocast_by_hand() -> None:
    plain_net, ours_net = net(), net()
    optimizer, losses = torch.optim.SGD(plain_net.parameters(), lr=0.1), []
    for x, y in in_batches(7, X, Y):
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, targets in in_batches(3, x, y):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(plain_net(part), targets, reduction="sum") / len(x)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)

    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y))
    config = plain_config(epochs=1, batch_size=7, micro_batch_size=3, precision="bf16")
    ours = [result.loss for result in prepare(task, config).steps()]

    assert_same(losses, ours)
    assert_same(weights(plain_net), weights(ours_net), exact=True)


def test_bf16_with_a_loss_of_the_user_in_bf16_equals_its_mean_by_hand() -> None:
    def l1(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.to(outputs.dtype)).abs().mean()

    plain_net, ours_net = net(2), net(2)
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for x, z in in_batches(8, X[:49], Z[:49]):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = l1(plain_net(x), z)
        loss.backward()
        optimizer.step()

    task = surestep.Task(ours_net, l1, train=(X[:49], Z[:49]))
    train(task, plain_config(epochs=1, batch_size=8, precision="bf16"))

    assert_same(weights(plain_net), weights(ours_net), exact=True)


def fp16_by_hand(
    model: nn.Module, scaler: torch.amp.GradScaler, *, size: int, clip: float | None, epochs: int
) -> list[float]:
    """Train by hand under fp16; return the scale after each step."""
    optimizer, scales = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(epochs):
        for x, y in in_batches(size, X, Y):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y, reduction="sum") / len(x)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    return scales


FP16: dict[str, Any] = {
    "precision": "fp16",
    "scaler": {"init_scale": 2.0**20, "growth_interval": 3},
    "optim": {"momentum": 0.9},
    "batch_size": 7,
}


def test_fp16_with_overflows_and_growth_equals_a_scaler_by_hand() -> None:
    plain_net, ours_net = net(), net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    plain = fp16_by_hand(plain_net, scaler, size=7, clip=0.5, epochs=3)

    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y))
    session = prepare(task, plain_config(epochs=3, max_grad_norm=0.5, **FP16))
    ours = [session.state.scaler.get_scale() for _ in session.steps()]

    assert len(set(plain)) > 2  # it overflowed and it grew
    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


def test_fp16_resumed_in_an_epoch_equals_a_scaler_by_hand() -> None:
    plain_net = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    plain = fp16_by_hand(plain_net, scaler, size=7, clip=None, epochs=3)

    ours = []
    for stop in (5, 11, 100):
        ours_net = net()
        task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X, Y))
        with surestep.prepare(task, plain_config(epochs=3, **FP16), run="run") as session:
            for result in session.steps():
                ours.append(session.state.scaler.get_scale())
                if result.step == stop:
                    session.save()
                    break

    assert_same(plain, ours)
    assert_same(weights(plain_net), weights(ours_net))


class HalfDouble(nn.Module):
    """A float32 trunk and a float64 head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(4, 5), nn.Linear(5, 2).double()
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.trunk(x)).double())


def test_clipping_of_a_model_with_two_dtypes_equals_torchs() -> None:
    torch.manual_seed(0)
    plain_net = HalfDouble()
    ours_net = copy.deepcopy(plain_net)
    optimizer, norms = torch.optim.AdamW(plain_net.parameters(), lr=0.1, weight_decay=0.0), []
    for x, z in in_batches(7, X, Z.double()):
        optimizer.zero_grad()
        F.mse_loss(plain_net(x), z).backward()
        norms.append(nn.utils.clip_grad_norm_(plain_net.parameters(), 0.3))
        optimizer.step()

    task = surestep.Task(ours_net, nn.MSELoss(), train=(X, Z.double()))
    config = plain_config(epochs=1, batch_size=7, max_grad_norm=0.3, optim=ADAMW)
    ours = [result.grad_norm for result in prepare(task, config).steps()]

    assert_same([norm.float() for norm in norms], [norm.float() for norm in ours])
    assert_same(*([w.float() for w in net.parameters()] for net in (plain_net, ours_net)))


class Wave(nn.Module):
    """Complex weights between real inputs and real outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
        self.shift = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.out = nn.Linear(3, 2)
        self.register_buffer("last", torch.zeros(3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.exp(1j * (x.to(torch.complex64) @ self.mix + self.shift) / 3)
        if self.training:
            self.last = waves[-1].detach()
        return self.out((waves * waves.conj()).real + waves.imag)


def test_complex_parameters_equal_a_loop_by_hand() -> None:
    torch.manual_seed(0)
    plain_net = Wave()
    ours_net = copy.deepcopy(plain_net)
    optimizer = torch.optim.AdamW(plain_net.parameters(), lr=0.01, weight_decay=0.0)
    average = torch.optim.swa_utils.AveragedModel(
        plain_net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    seen = []
    for _ in range(2):
        for x, z in in_batches(7, X, Z):
            optimizer.zero_grad()
            for part, targets in in_batches(4, x, z):
                (F.mse_loss(plain_net(part), targets) * len(part) / len(x)).backward()
            norm = nn.utils.clip_grad_norm_(plain_net.parameters(), 0.3)
            optimizer.step()
            average.update_parameters(plain_net)
            seen.append(float(norm))
    with torch.no_grad():
        plain_loss = float(F.mse_loss(average.module(X), Z))

    task = surestep.Task(ours_net, nn.MSELoss(), train=(X, Z), val=(X, Z))
    config = plain_config(
        epochs=2,
        batch_size=7,
        micro_batch_size=4,
        max_grad_norm=0.3,
        optim=ADAMW | {"lr": 0.01},
        average={"kind": "ema", "decay": 0.9, "warmup": False, "start": 0},
    )
    session = prepare(task, config)
    ours = [float(result.grad_norm) for result in session.steps()]

    assert_same(torch.tensor(seen), torch.tensor(ours))
    assert_same(weights(plain_net), weights(ours_net))
    assert_same(torch.tensor(plain_loss), torch.tensor(session.evaluate()["val/loss"]))


def test_16_bit_models_equal_a_loop_by_hand() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        plain_net, ours_net = net().to(dtype), net().to(dtype)
        optimizer, losses = torch.optim.SGD(plain_net.parameters(), lr=0.1), []
        for x, y in in_batches(8, X[:40].to(dtype), Y[:40]):
            optimizer.zero_grad()
            loss = F.cross_entropy(plain_net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.float())

        task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(X[:40].to(dtype), Y[:40]))
        session = train(task, plain_config(epochs=1, batch_size=8))

        assert_same(weights(plain_net), weights(ours_net), exact=True)
        assert session.state.progress.steps_taken == 5


def test_bf16_evaluations_are_means_over_the_samples_under_autocast() -> None:
    ours_net = net()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        losses = torch.cat(
            [
                F.cross_entropy(ours_net(x), y, reduction="none")
                for x, y in in_batches(7, X[:50], Y[:50])
            ]
        )
        outputs = torch.cat([ours_net(x) for (x,) in in_batches(7, X[:50])])
    plain = [losses.double().mean(), (outputs.argmax(1) == Y[:50]).double().mean()]

    def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) == targets).double().mean()

    task = surestep.Task(
        ours_net,
        nn.CrossEntropyLoss(),
        train=(X, Y),
        val=(X[:50], Y[:50]),
        metrics={"accuracy": accuracy},
    )
    config = plain_config(epochs=1, batch_size=7, precision="bf16", validation={"batch_size": 7})
    session = prepare(task, config)
    ours = session.evaluate()
    found = session.predict("val")

    assert_same([float(value) for value in plain][1], ours["val/accuracy"])
    assert abs(ours["val/loss"] - float(plain[0])) < 1e-6
    assert_same(outputs.float(), torch.from_numpy(found["output"]), exact=True)
    assert_same(outputs.argmax(1), torch.from_numpy(found["prediction"]))


def test_elements_of_double_gradients_are_clipped_as_torch_clips_them() -> None:
    plain_net, ours_net = net(2).double(), net(2).double()
    optimizer = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    for x, z in in_batches(7, X.double(), Z.double()):
        optimizer.zero_grad()
        F.mse_loss(plain_net(x), z).backward()
        nn.utils.clip_grad_value_(plain_net.parameters(), 0.01)
        optimizer.step()

    task = surestep.Task(ours_net, nn.MSELoss(), train=(X.double(), Z.double()))
    train(task, plain_config(epochs=1, batch_size=7, clip_value=0.01))

    assert_same(weights(plain_net), weights(ours_net))


def test_a_double_loss_above_the_range_of_float32_is_a_number() -> None:
    def big(outputs: Tensor, targets: Tensor) -> Tensor:
        return 1e45 * (outputs - targets).square().mean()

    plain_net, ours_net = net(2).double(), net(2).double()
    optimizer, losses = torch.optim.SGD(plain_net.parameters(), lr=1e-46), []
    for x, z in in_batches(7, X.double(), Z.double()):
        optimizer.zero_grad()
        loss = big(plain_net(x), z)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    for options in ({}, {"on_nonfinite": "skip"}, {"max_grad_norm": 1e50}):
        ours_net = net(2).double()
        task = surestep.Task(ours_net, big, train=(X.double(), Z.double()))
        config = plain_config(epochs=1, batch_size=7, optim={"lr": 1e-46}, **options)
        ours = [float(result.loss) for result in prepare(task, config).steps()]

        assert_same(losses, ours)
        assert_same(weights(plain_net), weights(ours_net))


def test_average_of_a_bf16_model_is_computed_in_float32() -> None:
    torch.manual_seed(0)
    plain_net = nn.Linear(4, 3).bfloat16()
    ours_net = copy.deepcopy(plain_net)
    optimizer = torch.optim.AdamW(plain_net.parameters(), lr=0.01, weight_decay=0.0, fused=True)
    average: dict[str, Tensor] = {}
    x16 = X.bfloat16()
    for _ in range(2):
        for x, y in in_batches(7, x16, Y):
            optimizer.zero_grad()
            F.cross_entropy(plain_net(x), y).backward()
            optimizer.step()
            for name, weight in plain_net.named_parameters():
                now = weight.detach().float()
                average[name] = average[name].lerp(now, 0.1) if name in average else now.clone()
    with torch.no_grad():
        rounded = {name: value.bfloat16() for name, value in average.items()}
        plain = torch.func.functional_call(plain_net, rounded, (x16,)).float()

    task = surestep.Task(ours_net, nn.CrossEntropyLoss(), train=(x16, Y), val=(x16, Y))
    config = plain_config(
        epochs=2,
        batch_size=7,
        optim=ADAMW | {"lr": 0.01},
        average={"kind": "ema", "decay": 0.9, "warmup": False, "start": 0},
    )
    session = train(task, config)

    assert_same(weights(plain_net), weights(ours_net), exact=True)
    assert_same(plain, torch.from_numpy(session.predict("val")["output"]), exact=True)
