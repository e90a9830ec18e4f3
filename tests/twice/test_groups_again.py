"""Groups, decay and clipping of models whose parameters have unusual roles and types."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import surestep
from tests.twice.compare import assert_same, in_batches, prepare, weights

X = torch.randn(43, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = 3 * X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
LR, DECAY = 0.05, 0.3


def seeded(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return make().double()


def by_hand(
    net: Any,
    optimizer: torch.optim.Optimizer,
    *,
    clip: Callable[[Any], Any] = lambda net: None,
    before: Callable[[int], Any] = lambda step: None,
    data: tuple[Tensor, Tensor] = (X, Y),
) -> list[Any]:
    losses: list[float] = []
    for _ in range(3):
        for x, y in in_batches(7, *data):
            before(len(losses))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            clip(net)
            optimizer.step()
            losses.append(loss.item())
    return [torch.tensor(losses, dtype=torch.float64), weights(net)]


def ours(
    net: Any,
    optim: dict[str, Any],
    *,
    data: tuple[Tensor, Tensor] = (X, Y),
    task: dict[str, Any] | None = None,
    **options: Any,
) -> list[Any]:
    made = surestep.Task(net, nn.MSELoss(), train=data, **task or {})
    config = surestep.Config(
        **{"epochs": 3, "batch_size": 7, "max_grad_norm": None, "schedule": "constant"} | options,
        optim=optim,
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    losses = [float(result.loss) for result in prepare(made, config).steps()]
    return [torch.tensor(losses, dtype=torch.float64), weights(net)]


def decayed(net: nn.Module, names: set[str], kind: Any = torch.optim.AdamW) -> Any:
    """Return an optimizer in which only the named parameters decay."""
    groups = [
        {"params": [p], "weight_decay": DECAY if name in names else 0.0}
        for name, p in net.named_parameters()
    ]
    return kind(groups, lr=LR)


class Skew(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu(1) - x.triu(1).mT


class Scale(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.log.exp()


def old_weight_norm() -> nn.Module:
    first = nn.utils.weight_norm(nn.Linear(4, 5), dim=0)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(5, 1))


def new_weight_norm() -> nn.Module:
    first = parametrizations.weight_norm(nn.Linear(4, 5), dim=None)
    return nn.Sequential(first, nn.Tanh(), nn.Linear(5, 1))


def skewed() -> nn.Module:
    first = nn.Linear(4, 4)
    parametrize.register_parametrization(first, "weight", Skew())
    return nn.Sequential(first, nn.Tanh(), nn.Linear(4, 1))


def scaled_bias() -> nn.Module:
    first = nn.Linear(4, 5)
    parametrize.register_parametrization(first, "bias", Scale())
    return nn.Sequential(first, nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 1))


class Own(nn.Module):
    """A matrix and vectors that belong to no module of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(4, 3))
        self.gate = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(3))
        self.parts = nn.ParameterDict({"a": torch.randn(3, 1), "b": torch.randn(1)})

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.mix * self.gate + self.shift)
        return hidden @ self.parts["a"] + self.parts["b"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        sequence = torch.stack([x, 2 * x, x * x], 1)
        return self.last(self.attend(sequence, sequence, sequence, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(2, 3, num_layers=2, batch_first=True)
        self.last = nn.Bilinear(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.cells(x.view(-1, 2, 2))[0]
        return self.last(out[:, 0], out[:, 1])


ROLES: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "lengths and directions of the old weight norm": (
        old_weight_norm,
        {"0.weight_g", "0.weight_v", "2.weight"},
    ),
    "one length of a weight norm": (
        new_weight_norm,
        {f"0.parametrizations.weight.original{i}" for i in (0, 1)} | {"2.weight"},
    ),
    "skew matrix": (skewed, {"0.parametrizations.weight.original", "2.weight"}),
    "bias with a scale": (scaled_bias, {"0.weight", "3.weight"}),
    "parameters of no module": (Own, {"mix", "parts.a"}),
    "attention": (Attention, {"attend.in_proj_weight", "attend.out_proj.weight", "last.weight"}),
    "recurrent": (
        Recurrent,
        {f"cells.weight_{a}h_l{i}" for a in "ih" for i in (0, 1)} | {"last.weight"},
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_matrices_decay_whatever_makes_them_and_nothing_else_does(role: str) -> None:
    make, names = ROLES[role]
    net = seeded(make)
    assert names <= dict(net.named_parameters()).keys()
    plain = by_hand(net, decayed(net, names))
    found = ours(seeded(make), {"name": "adamw", "lr": LR, "weight_decay": DECAY})
    assert_same(plain, found)


@pytest.mark.parametrize("kind", ["sgd", "rmsprop", "adagrad", "nadam", "adamax", "asgd", "radam"])
def test_each_optimizer_decays_the_matrices_alone(kind: str) -> None:
    torch_kind = {
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
        "nadam": torch.optim.NAdam,
        "adamax": torch.optim.Adamax,
        "asgd": torch.optim.ASGD,
        "radam": torch.optim.RAdam,
    }[kind]
    net = seeded(Own)
    plain = by_hand(
        net,
        decayed(net, {"mix", "parts.a"}, partial(torch_kind, foreach=True)),
        clip=lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.5),
    )
    optim: dict[str, Any] = {"name": kind, "lr": LR, "weight_decay": DECAY}
    optim |= {"momentum": 0.0} if kind == "sgd" else {}
    assert_same(plain, ours(seeded(Own), optim, max_grad_norm=0.5))


class Blocks(nn.Module):
    """A table that is tied to the head, blocks of one shared layer, and a norm at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        shared = nn.Linear(4, 4, bias=False)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"own": nn.Linear(4, 4), "shared": shared, "norm": nn.LayerNorm(4)})
            for _ in range(3)
        )
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.inside.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        for block in self.blocks:
            x = x + block["norm"](torch.tanh(block["own"](x)) + block["shared"](x))
        return self.head(self.norm(x)).mean(1, keepdim=True)


def test_layer_wise_rates_of_tied_and_shared_weights_are_those_of_their_first_layer() -> None:
    net = seeded(Blocks)
    groups = []
    for name, p in net.named_parameters():
        part = name.split(".")
        layer = {"inside": 0, "norm": 4, "head": 4}.get(part[0])
        layer = 1 + int(part[1]) if layer is None else layer
        if "shared" in part:
            layer = 1
        decay = DECAY if p.dim() > 1 else 0.0
        groups.append({"params": [p], "lr": LR * 0.7 ** (4 - layer), "weight_decay": decay})
    plain = by_hand(net, torch.optim.AdamW(groups))
    optim = {"name": "adamw", "lr": LR, "weight_decay": DECAY, "layerwise_lr_decay": 0.7}
    assert_same(plain, ours(seeded(Blocks), optim))


def test_absolute_rate_and_multiple_of_overlapping_patterns_under_layer_wise_decay() -> None:
    """A rate overrides the layer; of two patterns, the later one decides each setting."""
    net = seeded(Blocks)
    groups = []
    for name, p in net.named_parameters():
        part = name.split(".")
        layer = {"inside": 0, "norm": 4, "head": 4}.get(part[0])
        layer = 1 + int(part[1]) if layer is None else layer
        layer = 1 if "shared" in part else layer
        rate = LR * 0.7 ** (4 - layer)
        decay = DECAY if p.dim() > 1 else 0.0
        if name.startswith("blocks.1"):
            rate = 0.002
        if name.startswith("blocks") and part[2] == "norm":
            rate, decay = LR * 3 * 0.7 ** (4 - layer), 0.1
        if "shared" in part:  # its name in blocks.1 too
            rate, decay = 0.002, 0.0
        groups.append({"params": [p], "lr": rate, "weight_decay": decay})
    plain = by_hand(net, torch.optim.AdamW(groups))
    optim = {
        **{"name": "adamw", "lr": LR, "weight_decay": DECAY, "layerwise_lr_decay": 0.7},
        "groups": [
            *("blocks.1 lr=0.002", "type:LayerNorm lr=3x decay=0.1", "norm lr=1x decay=0"),
            "blocks.2.shared decay=0",
        ],
    }
    assert_same(plain, ours(seeded(Blocks), optim))


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_frozen_then_trained_parts_join_the_norm_and_the_decay_when_they_are_trained(clip) -> None:
    """The tied weight is frozen by one of its names and a block by its type until step 8."""
    net = seeded(Blocks)
    late = [*net.blocks[2].parameters(), net.head.weight]
    late = [p for p in late if p is not net.blocks[0]["shared"].weight]
    late.append(net.blocks[0]["shared"].weight)

    def before(step: int) -> None:
        for p in late:
            p.requires_grad_(step >= 8)

    def clipped(net: Any) -> None:
        if clip == "norm":
            nn.utils.clip_grad_norm_(net.parameters(), 0.4)
        else:
            nn.utils.clip_grad_value_(net.parameters(), 0.02)

    optimizer = decayed(net, {n for n, p in net.named_parameters() if p.dim() > 1})
    plain = by_hand(net, optimizer, clip=clipped, before=before)
    optim = {"name": "adamw", "lr": LR, "weight_decay": DECAY}
    optim["groups"] = ["head.weight freeze='8 steps'", "blocks.2 freeze='8 steps'"]
    limit = {"max_grad_norm": 0.4} if clip == "norm" else {"clip_value": 0.02}
    assert_same(plain, ours(seeded(Blocks), optim, **limit))


class Lion(torch.optim.Optimizer):
    """An optimizer by hand that keeps a list and a count in its state, and one for each group."""

    def __init__(self, params: Any, lr: float = LR, weight_decay: float = DECAY) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "seen": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["seen"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {"moments": [torch.zeros_like(p), torch.zeros_like(p)], "count": 0}
                state["count"] += 1
                slow, fast = state["moments"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = (0.9 * slow + 0.1 * p.grad).sign_().add_(fast, alpha=0.1)
                p.sub_(update, alpha=group["lr"] / (state["count"] * group["seen"]) ** 0.5)
                slow.mul_(0.99).add_(p.grad, alpha=0.01)
                fast.copy_(p.grad)


@pytest.mark.parametrize("stops", [(), (5,), (7, 9, 15)])
def test_own_optimizer_with_lists_and_counts_goes_on_after_a_resume(stops) -> None:
    net = seeded(Blocks)
    late = list(net.blocks[1]["own"].parameters())

    def before(step: int) -> None:
        for p in late:
            p.requires_grad_(step >= 10)

    groups = [
        {
            "params": [p],
            "lr": LR * (0.3 if n.startswith("blocks.0") else 1.0),
            "weight_decay": DECAY if p.dim() > 1 and not n.startswith("norm") else 0.0,
        }
        for n, p in net.named_parameters()
    ]
    plain = by_hand(net, Lion(groups), before=before)
    losses = []
    for stop in (*stops, 0):
        found = seeded(Blocks)
        task = surestep.Task(found, nn.MSELoss(), train=(X, Y), optimizer=decays_apart(found))
        config = surestep.Config(
            epochs=3,
            batch_size=7,
            max_grad_norm=None,
            schedule="constant",
            optim={"groups": ["blocks.0 lr=0.3x", "blocks.1.own freeze='10 steps'"]},
            data={"shuffle": False},
            logging={"progress": "quiet"},
        )
        session = prepare(task, config, run="run")
        for result in session.steps():
            losses.append(float(result.loss))
            if result.step == stop:
                session.save()
                break
        session.close()
    assert_same(plain, [torch.tensor(losses, dtype=torch.float64), weights(found)])


def decays_apart(net: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """Return what makes an optimizer of groups in which vectors do not decay."""

    def make(groups: Any) -> torch.optim.Optimizer:
        parts = []
        for group in groups:
            for is_matrix in (True, False):
                chosen = [p for p in group["params"] if (p.dim() > 1) is is_matrix]
                decay = DECAY if is_matrix else 0.0
                if chosen:
                    parts.append({**group, "params": chosen, "weight_decay": decay})
        return Lion(parts)

    return make


@pytest.mark.parametrize("way", ["norm", "value"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_part_in_16_bits_is_clipped_with_the_others_as_torch_does(way: str, dtype: Any) -> None:
    def make() -> nn.Module:
        class Parts(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.middle = nn.Linear(4, 5), nn.Linear(5, 5).to(dtype)
                self.last = nn.Linear(5, 1).double()

            def forward(self, x: Tensor) -> Tensor:
                hidden = torch.tanh(self.middle(self.first(x.float()).to(dtype)))
                return self.last(hidden.double())

        torch.manual_seed(0)
        return Parts()

    def clip(net: Any) -> None:
        if way == "norm":
            nn.utils.clip_grad_norm_(net.parameters(), 0.3, foreach=False)
        else:
            nn.utils.clip_grad_value_(net.parameters(), 0.05)

    net = make()
    plain = by_hand(net, torch.optim.SGD(net.parameters(), lr=LR, foreach=True), clip=clip)
    optim = {"name": "sgd", "lr": LR, "momentum": 0.0, "weight_decay": 0.0}
    limit = {"max_grad_norm": 0.3} if way == "norm" else {"clip_value": 0.05}
    found = ours(make(), optim, **limit)
    for key, value in plain[1].items():
        rounding = 2.0**-7 if value.dtype == dtype else 1e-2
        assert torch.allclose(value.double(), found[1][key].double(), rtol=rounding, atol=1e-3), key
    first = abs(plain[0] - found[0])[:4].max()
    assert first < 1e-3 * plain[0][0]
