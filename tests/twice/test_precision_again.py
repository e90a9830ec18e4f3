"""Precision and skipped steps: odd dtypes of weights and losses, and values that overflow."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import surestep
from tests.twice.compare import assert_same, in_batches, plain_config, prepare, weights

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(43, 4, generator=GENERATOR)
Y = torch.randint(0, 3, (43,), generator=GENERATOR)
Z = torch.randn(43, 3, generator=GENERATOR)
HALF = [torch.bfloat16, torch.float16]


def make_net(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def steps(net: Any, loss: Any, data: Any, *, task: Any = None, **options: Any) -> Any:
    """Train with surestep; return the results of the steps and the session."""
    made = surestep.Task(net, loss, train=data, **task or {})
    session = prepare(made, plain_config(**{"epochs": 2, "batch_size": 7} | options))
    return list(session.steps()), session


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("limit", [0.1, 1.0])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_16_bit_gradients_are_clipped_bit_for_bit_as_torch_clips_them(dtype, limit, name) -> None:
    x, z = X[:40].to(dtype), Z[:40].to(dtype)
    net, norms = make_net(dtype), []
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    more: dict[str, Any] = {} if name == "sgd" else {"weight_decay": 0.0, "fused": True}
    optimizer = kind(net.parameters(), lr=2.0**-6, **more)
    for _ in range(2):
        for a, b in in_batches(8, x, z):
            optimizer.zero_grad()
            F.mse_loss(net(a), b).backward()
            norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), limit)))
            optimizer.step()
    optim: dict[str, Any] = {"name": name, "lr": 2.0**-6}
    optim |= {} if name == "sgd" else {"momentum": surestep.NOT_SET}
    found = make_net(dtype)
    results, _ = steps(found, nn.MSELoss(), (x, z), batch_size=8, max_grad_norm=limit, optim=optim)
    assert norms[0] == float(results[0].grad_norm)
    for key, value in weights(net).items():
        assert torch.allclose(value.float(), found.state_dict()[key].float(), atol=2.0**-6), key


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("implementation", ["auto", "for_loop"])
def test_finite_fp16_gradients_of_which_the_norm_overflows_are_used(implementation, mixed) -> None:
    """Each value is in the range of fp16, and the root of the sum of their squares is not."""
    x = 3e4 * torch.tensor([1, -1, 1, -1, 1], dtype=torch.float16).repeat(12, 1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.float().mean()

    def linear() -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 1, bias=False).to(torch.float16))
        return net.append(Add()) if mixed else net

    class Add(nn.Linear):
        """A part in fp32."""

        def __init__(self) -> None:
            super().__init__(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float() * 1e-4)

    net, norms = linear(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0**-22)
    for a, b in in_batches(4, x, x):
        optimizer.zero_grad()
        loss(net(a) * (4e4 if mixed else 1.0), b).backward()
        norms.append(sum(float(p.grad.double().square().sum()) for p in net.parameters()) ** 0.5)
        optimizer.step()
    found = linear()
    optim = {"lr": 2.0**-22, "implementation": implementation}
    if mixed:
        found.register_forward_hook(lambda module, args, out: out * 4e4)
    results, _ = steps(found, loss, (x, x), epochs=1, batch_size=4, optim=optim)
    assert min(norms) > 65504
    torch.testing.assert_close(norms, [float(r.grad_norm) for r in results], rtol=1e-3, atol=0.0)
    for key, value in weights(net).items():
        torch.testing.assert_close(value, weights(found)[key], rtol=1e-3, atol=1e-3)


def fp16_by_hand(
    net: Any, x: Tensor, scale: float, *, sizes: tuple[int, int], limit: float | None
) -> list[Any]:
    """Train under fp16 with a schedule that a skipped step does not advance."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 21)
    rates: list[list[float]] = []
    for _ in range(3):
        for a, b in in_batches(sizes[0], x, Y):
            optimizer.zero_grad()
            total = 0.0
            for part, targets in in_batches(sizes[1], a, b):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(net(part), targets, reduction="sum") / len(a)
                scaler.scale(loss).backward()
                total += loss.item()
            rates.append([optimizer.param_groups[0]["lr"], scaler.get_scale()])
            if not math.isfinite(total):
                continue
            scaler.unscale_(optimizer)
            finite = all(bool(p.grad.isfinite().all()) for p in net.parameters())
            if limit is not None:
                nn.utils.clip_grad_value_(net.parameters(), limit)
            scaler.step(optimizer)
            scaler.update()
            if finite:
                scheduler.step()
    return [torch.tensor(rates), weights(net)]


@pytest.mark.parametrize("micro", [7, 3])
@pytest.mark.parametrize("limit", [None, 0.05])
@pytest.mark.parametrize("bad", [False, True])
def test_fp16_with_overflows_nans_and_a_schedule_equals_a_loop_by_hand(micro, limit, bad) -> None:
    """A loss that is NaN is skipped and leaves the scale; gradients that overflow halve it."""
    x = X.clone()
    if bad:
        x[17] = torch.nan
    plain = fp16_by_hand(make_net(), x, 2.0**19, sizes=(7, micro), limit=limit)
    found = make_net()
    task = surestep.Task(found, nn.CrossEntropyLoss(), train=(x, Y))
    config = plain_config(
        epochs=3,
        batch_size=7,
        micro_batch_size=micro,
        precision="fp16",
        scaler={"init_scale": 2.0**19, "growth_interval": 4},
        optim={"momentum": 0.9},
        schedule="linear",
        clip_value=limit,
        on_nonfinite="skip",
    )
    session = prepare(task, config)
    rates, scale = [], session.state.scaler.get_scale()
    for result in session.steps():
        rates.append([result.lr, scale])
        scale = session.state.scaler.get_scale()
    assert len(set(plain[0][:, 1].tolist())) > 2
    assert_same(plain, [torch.tensor(rates), weights(found)])


def skipping(
    net: Any,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    loss: Callable[..., Tensor],
    *,
    autocast: bool = False,
    limit: float | None = None,
    before: Callable[[int], Any] = lambda taken: None,
) -> list[Any]:
    """Train two epochs; a step whose loss or gradient is not finite leaves nothing."""
    losses: list[float] = []
    for _ in range(2):
        for a, b in in_batches(7, x, y):
            before(len(losses))
            saved = weights(net)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                value = loss(net(a), b)
            value.backward()
            grads = [p.grad for p in net.parameters() if p.grad is not None]
            if limit is not None:
                nn.utils.clip_grad_norm_(net.parameters(), limit)
            if value.isfinite() and all(bool(grad.isfinite().all()) for grad in grads):
                optimizer.step()
                losses.append(value.item())
            else:
                net.load_state_dict(saved)
    return [losses, weights(net)]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("every", [1, 5, 50])
def test_bf16_with_nans_in_one_micro_batch_skips_the_full_step(name: str, every: int) -> None:
    x = X.clone()
    x[9], x[20], x[42] = torch.nan, torch.inf, torch.nan  # the last batch has one sample
    net = make_net()
    kind: Any = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    more: dict[str, Any] = {"weight_decay": 0.0, "fused": True}
    plain = skipping(
        net, kind(net.parameters(), lr=0.1, **more), x, Y, F.cross_entropy, autocast=True, limit=0.3
    )
    found = make_net()
    optim = {} if name == "sgd" else {"name": "adamw", "momentum": surestep.NOT_SET}
    results, session = steps(
        found,
        nn.CrossEntropyLoss(),
        (x, Y),
        precision="bf16",
        micro_batch_size=7,
        max_grad_norm=0.3,
        optim=optim,
        on_nonfinite="skip",
        logging={"every": f"{every} steps"},
    )
    losses = [float(result.loss) for result in results if bool(result.took_step)]
    assert_same(torch.tensor(plain[0]), torch.tensor(losses))
    assert_same(plain[1], weights(found))
    assert session.state.counts.nonfinite == 6
    assert session.state.progress.steps_taken == 8


def test_skipped_steps_do_not_count_until_a_part_is_trained() -> None:
    """A part is frozen for four updates, of which the first batch is none."""
    x = X.double().clone()
    x[3] = torch.nan
    net = make_net(torch.float64)

    def before(taken: int) -> None:
        net[0].requires_grad_(taken >= 4)

    plain = skipping(
        net, torch.optim.SGD(net.parameters(), lr=0.1), x, Z.double(), F.mse_loss, before=before
    )
    found = make_net(torch.float64)
    results, _ = steps(
        found,
        nn.MSELoss(),
        (x, Z.double()),
        optim={"groups": ["0 freeze='4 steps'"]},
        on_nonfinite="skip",
    )
    losses = [float(result.loss) for result in results if bool(result.took_step)]
    assert_same([plain[0], plain[1]], [losses, weights(found)])


def test_gradient_that_is_not_finite_at_a_frozen_weight_skips_nothing() -> None:
    """Sqrt has an infinite slope at 0, where only a frozen part sees it."""

    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.root = nn.Parameter(torch.zeros(3, dtype=torch.float64))
            self.last = nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(x) + self.root.sqrt()

    def make() -> Any:
        torch.manual_seed(0)
        return Rooted()

    net = make()
    net.root.requires_grad_(False)
    plain = skipping(
        net, torch.optim.SGD(net.parameters(), lr=0.1), X.double(), Z.double(), F.mse_loss
    )
    found = make()
    results, session = steps(
        found,
        nn.MSELoss(),
        (X.double(), Z.double()),
        optim={"groups": ["root freeze"]},
        on_nonfinite="skip",
    )
    assert_same(plain, [[float(result.loss) for result in results], weights(found)])
    assert session.state.counts.nonfinite == 0


@pytest.mark.parametrize("micro", [7, 4])
@pytest.mark.parametrize("way", ["dict", "sum", "mean"])
def test_losses_of_the_user_in_bf16_equal_their_gradients_by_hand(micro: int, way: str) -> None:
    """A dict of a part in 16 bits and one in 32, and a sum or a mean in 16 bits."""

    def parts(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        assert outputs.dtype == torch.bfloat16
        near = (outputs - targets.to(outputs.dtype)).abs().sum(1).mean()
        return {"near": near, "small": 0.25 * outputs.float().square().sum(1).mean()}

    def loss(outputs: Tensor, targets: Tensor) -> Any:
        if way == "dict":
            return parts(outputs, targets)
        errors = (outputs - targets.to(outputs.dtype)).abs().sum(1)
        return errors.sum() if way == "sum" else errors.mean()

    net, x, z = make_net(), X[:40], Z[:40]
    optimizer = torch.optim.SGD(net.parameters(), lr=2.0**-6)
    for a, b in in_batches(8, x, z):
        optimizer.zero_grad()
        for c, d in in_batches(8 if micro == 7 else 4, a, b):
            share = 1.0 if way == "sum" else len(c) / len(a)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = loss(net(c), d)
                total = sum(value.values()) if isinstance(value, dict) else value
            (total * share).backward()
        optimizer.step()
    found = make_net()
    steps(
        found,
        loss,
        (x, z),
        epochs=1,
        batch_size=8,
        micro_batch_size=8 if micro == 7 else 4,
        precision="bf16",
        optim={"lr": 2.0**-6},
        task={"reduction": "sum"} if way == "sum" else {},
    )
    assert_same(weights(net), weights(found))


@pytest.mark.parametrize("on_nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_complex_weights_and_a_buffer_are_clipped_and_skipped_as_by_hand(
    on_nonfinite, name
) -> None:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))
            self.register_buffer("seen", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            out = x.to(torch.complex64) @ self.weight
            if self.training:
                self.seen += out.detach().mean(0)
            return out.abs()

    def make() -> Any:
        torch.manual_seed(0)
        return Waves()

    x = X.clone()
    if on_nonfinite == "skip":
        x[30] = torch.inf
    net = make()
    kind: Any = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]
    optimizer = kind(net.parameters(), lr=0.1)
    plain = skipping(net, optimizer, x, Z, F.mse_loss, limit=0.4)
    found = make()
    optim = {} if name == "sgd" else {"name": "adam", "momentum": surestep.NOT_SET}
    results, _ = steps(
        found,
        nn.MSELoss(),
        (x, Z),
        max_grad_norm=0.4,
        optim=optim,
        on_nonfinite=on_nonfinite,
    )
    losses = [float(result.loss) for result in results if bool(result.took_step)]
    assert_same(torch.tensor(plain[0]), torch.tensor(losses))
    for key, value in plain[1].items():
        assert_same(torch.view_as_real(value), torch.view_as_real(weights(found)[key]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("micro", [7, 2])
def test_weighted_and_ignored_targets_are_counted_alike_in_each_dtype(dtype, micro) -> None:
    """A micro-batch has only ignored targets, and a class weighs nothing."""
    y = Y.clone()
    y[2:4], y[20], y[42] = -100, -100, -100
    weight = torch.tensor([0.3, 0.0, 1.7], dtype=dtype)
    net, losses = make_net(dtype), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
    for a, b in in_batches(7, X.to(dtype), y):
        if (b >= 0).any() and float(weight[b[b >= 0]].sum()):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(a), b, weight=weight)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    found = make_net(dtype)
    loss = nn.CrossEntropyLoss(weight=weight)
    results, _ = steps(found, loss, (X.to(dtype), y), epochs=1, micro_batch_size=micro)
    ours = [float(result.loss) for result in results if bool(result.took_step)]
    rounding = {torch.float64: 1e-13, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    assert len(losses) == len(ours) == 6
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(ours), rtol=rounding, atol=0.0)
    for key, value in weights(net).items():
        torch.testing.assert_close(value, weights(found)[key], rtol=rounding, atol=rounding)


def test_losses_that_single_precision_cannot_hold_are_logged_in_double(tmp_path) -> None:
    """The loss of the steps and of the evaluation is above 3e38, and the last one is tiny."""
    x = X.double() * 1e30
    z = Z.double() * 1e30

    def make() -> Any:
        torch.manual_seed(0)
        return nn.Linear(4, 3).double()

    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-63)
    plain = []
    for a, b in in_batches(7, x, z):
        optimizer.zero_grad()
        loss = F.mse_loss(net(a), b)
        loss.backward()
        optimizer.step()
        plain.append(loss.item())
    with torch.no_grad():
        last = F.mse_loss(net(x[:11]), z[:11]).item()
    found = make()
    task = surestep.Task(found, nn.MSELoss(), train=(x, z), val=(x[:11], z[:11]))
    config = plain_config(epochs=1, batch_size=7, optim={"lr": 1e-63})
    run = surestep.Trainer(task, config, run=tmp_path / "r").fit()
    events = list(run.events())
    logged = [v for event in events if event["event"] == "steps" for v in event["loss"]]
    assert_same(plain, logged)
    assert_same(weights(net), weights(found))
    assert_same(last, run.last.metrics["val/loss"])
