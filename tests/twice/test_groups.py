"""Parameter groups, layer-wise rates and freezing: torch's groups, written by hand."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import Preempted
from tests.twice.compare import assert_same, in_batches, prepare, weights

X = torch.randn(43, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
tensor = partial(torch.tensor, dtype=torch.float64)
LR, DECAY = 0.02, 0.3
Groups = Callable[[Any], list[dict[str, Any]]]


def seeded(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return make().double()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(self.norm(x)))


class Deep(nn.Module):
    """An input layer, a position that is a parameter of the model, three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 5)
        self.position = nn.Parameter(torch.randn(1, 5) * 0.1)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def rates(net: Any, rate_of: Callable[[str], float], decays: Any = None) -> list[dict[str, Any]]:
    """Return a group for each parameter; matrices decay unless `decays` says otherwise."""
    found = []
    for name, p in net.named_parameters():
        decay = DECAY if p.dim() > 1 else 0.0
        if decays is not None and decays(name) is not None:
            decay = decays(name)
        found.append({"params": [p], "lr": rate_of(name), "weight_decay": decay})
    return found


KINDS: dict[str, Any] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=LR, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=LR),
    "adam": lambda groups: torch.optim.Adam(groups, lr=LR),
}


def by_hand(
    net: Any,
    groups: list[dict[str, Any]],
    kind: str = "sgd",
    *,
    before: Callable[[Any, int], None] = lambda net, step: None,
    clip: float | None = None,
    data: tuple[Tensor, Tensor] = (X, Y),
    loss: Any = nn.functional.mse_loss,
    epochs: int = 3,
) -> list[Any]:
    optimizer, losses = KINDS[kind](groups), []
    net.train()
    for _ in range(epochs):
        for x, y in in_batches(7, *data):
            before(net, len(losses))
            optimizer.zero_grad()
            value = loss(net(x), y)
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            losses.append(value.item())
    return [tensor(losses), weights(net)]


def make_config(kind: str = "sgd", **options: Any) -> surestep.Config:
    own: dict[str, Any] = {"momentum": 0.9} if kind == "sgd" else {}
    optim = {"name": kind, "lr": LR, "weight_decay": DECAY} | own | options.pop("optim", {})
    return surestep.Config(
        **{"epochs": 3, "batch_size": 7, "max_grad_norm": None} | options,
        optim=optim,
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )


def ours(
    net: Any,
    kind: str = "sgd",
    *,
    data: tuple[Tensor, Tensor] = (X, Y),
    loss: Any = None,
    task: Any = None,
    **options: Any,
) -> list[Any]:
    made = surestep.Task(net, loss or nn.MSELoss(), train=data, **task or {})
    session = prepare(made, make_config(kind, **options))
    return [tensor([float(result.loss) for result in session.steps()]), weights(net)]


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_decay_and_scales_shifts_and_biases_do_not(kind: str) -> None:
    net = seeded(Deep)
    decays = {"position": DECAY}.get
    plain = by_hand(net, rates(net, lambda _: LR, decays), kind)
    assert_same(plain, ours(seeded(Deep), kind))


@pytest.mark.parametrize("kind", KINDS)
def test_layer_wise_rates_fall_by_a_factor_from_the_head_down(kind: str) -> None:
    def rate(name: str) -> float:
        if name.startswith("blocks."):
            return LR * 0.5 ** (3 - int(name.split(".")[1]))
        return LR if name.startswith(("norm", "head")) else LR * 0.5**4

    net = seeded(Deep)
    plain = by_hand(net, rates(net, rate), kind, clip=1.0)
    found = ours(seeded(Deep), kind, optim={"layerwise_lr_decay": 0.5}, max_grad_norm=1.0)
    assert_same(plain, found)


def test_later_group_wins_for_each_setting_and_multiples_apply_to_layers() -> None:
    def rate(name: str) -> float:
        if name == "head.bias":
            return 0.005
        if name.startswith("blocks."):
            layer = LR * 0.5 ** (3 - int(name.split(".")[1]))
            return 0.1 * layer if "linear" in name else layer
        return LR if name.startswith(("norm", "head")) else LR * 0.5**4

    def decays(name: str) -> float | None:
        if name.startswith("blocks.1.linear"):
            return 0.7
        return 0.1 if "linear" in name else None

    net = seeded(Deep)
    plain = by_hand(net, rates(net, rate, decays))
    groups = [
        "*.linear lr=0.1x decay=0.1",
        "head.* lr=1",
        "head.bias lr=0.005",
        "blocks.1.linear decay=0.7",
        "head.weight lr=1x",
    ]
    assert_same(plain, ours(seeded(Deep), optim={"layerwise_lr_decay": 0.5, "groups": groups}))


def test_pattern_of_a_type_matches_its_subclasses_and_biases_decay_if_asked() -> None:
    class Own(nn.Linear):
        pass

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Own(5, 3), nn.LayerNorm(3), Own(3, 1))

    net = seeded(make)
    plain = by_hand(
        net,
        rates(
            net,
            lambda name: 0.5 * LR if name[0] in "24" else LR,
            lambda name: 0.6 if name[0] in "024" else 0.05 if name == "3.weight" else None,
        ),
    )
    groups = ["type:Linear decay=0.6", "type:Own lr=0.5x", "3.weight decay=0.05"]
    assert_same(plain, ours(seeded(make), optim={"groups": groups}))


def tokens(net: nn.Module) -> tuple[Tensor, Tensor]:
    x = torch.randint(0, 11, (43,), generator=torch.Generator().manual_seed(3))
    return x, (5 * x + 2) % 11


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(11, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 11)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.table(x))))


@pytest.mark.parametrize("name", ["head.weight", "table", "head.*"])
def test_tied_weight_is_matched_by_each_of_its_names(name: str) -> None:
    cross = nn.functional.cross_entropy

    def rate(own: str) -> float:
        return 0.3 * LR if own == "table.weight" or name == "head.*" == own[:5] + "*" else LR

    net = seeded(Tied)
    plain = by_hand(net, rates(net, rate, {"table.weight": 0.0}.get), data=tokens(net), loss=cross)
    found = ours(
        seeded(Tied),
        data=tokens(net),
        loss=nn.CrossEntropyLoss(),
        optim={"groups": [f"{name} lr=0.3x"]},
    )
    assert_same(plain, found)


def trains_from(parts: dict[str, int]) -> Callable[[Any, int], None]:
    """Return what sets requires_grad by the number of steps taken, as a loop by hand does."""

    def before(net: Any, step: int) -> None:
        for name, start in parts.items():
            for own, p in net.named_parameters():
                if own.startswith(name):
                    p.requires_grad_(step >= start)
                    if step == start:
                        p.grad = None

    return before


@pytest.mark.parametrize("kind", KINDS)
def test_parts_are_unfrozen_one_after_another_with_fresh_moments(kind: str) -> None:
    """The last batch of an epoch has one sample, and an epoch is seven steps."""
    net = seeded(Deep)
    before = trains_from({"embed": 7, "position": 7, "blocks.0": 9, "blocks.1": 1000})
    plain = by_hand(net, rates(net, lambda _: LR), kind, before=before, clip=0.5)
    groups = [
        "embed freeze='1 epoch'",
        "position freeze='1 epoch'",
        "blocks.0 freeze='9 steps'",
        "blocks.1 freeze",
    ]
    found = ours(seeded(Deep), kind, optim={"groups": groups}, max_grad_norm=0.5)
    assert_same(plain, found)


@pytest.mark.parametrize("at", [3, 8, 9, 14])
def test_unfreezing_goes_on_after_a_resume(at: int) -> None:
    net = seeded(Deep)
    before = trains_from({"embed": 9, "blocks.0": 14})
    plain = by_hand(net, rates(net, lambda _: LR), "adamw", before=before)

    class Pause(surestep.Callback):
        def on_step(self, state: Any, result: Any) -> Any:
            return surestep.Request.PAUSE if state.progress.step == at else None

    groups = ["embed freeze='9 steps'", "blocks.0 freeze='2 epochs'"]
    config = make_config("adamw", optim={"groups": groups})
    task = surestep.Task(seeded(Deep), nn.MSELoss(), train=(X, Y))
    first = surestep.Trainer(task, config, run="run", callbacks=[Pause()])
    with pytest.raises(Preempted):
        first.fit()
    found = seeded(Deep)
    task = surestep.Task(found, nn.MSELoss(), train=(X, Y))
    surestep.Trainer(task, config, run="run").fit()
    assert_same(plain[1], weights(found))


def test_frozen_batch_norm_keeps_its_statistics_until_it_is_trained() -> None:
    def make() -> nn.Module:
        first = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.0))
        return nn.Sequential(first, nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))

    data = X[:34], Y[:34]  # the last batch has six samples

    def before(net: Any, step: int) -> None:
        trains_from({"0.": 7})(net, step)
        net[0][1].train(step >= 7)

    net = seeded(make)
    plain = by_hand(net, rates(net, lambda _: LR), before=before, data=data)
    found = ours(seeded(make), data=data, optim={"groups": ["0 freeze='7 steps'"]})
    assert_same(plain, found)


def test_weights_that_the_model_freezes_stay_and_its_batch_norm_moves() -> None:
    def make() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
        net[0].requires_grad_(False)
        net[1].requires_grad_(False)
        return net

    data = X[:34], Y[:34]
    net = seeded(make)
    trained = [g for g in rates(net, lambda _: LR) if g["params"][0].requires_grad]
    plain = by_hand(net, trained, data=data)
    assert_same(plain, ours(seeded(make), data=data))


def test_model_that_offers_some_of_its_parameters_trains_those() -> None:
    """The optimizer by hand gets net.parameters(), which leaves a frozen teacher out."""

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.own = nn.Linear(4, 5), nn.Linear(5, 1)

        def parameters(self, recurse: bool = True) -> Any:
            return self.own.parameters(recurse)

        def forward(self, x: Tensor) -> Tensor:
            return self.own(torch.tanh(self.teacher(x)))

    net = seeded(Student)
    groups = [
        {"params": [p], "weight_decay": DECAY if p.dim() > 1 else 0.0} for p in net.parameters()
    ]
    plain = by_hand(net, groups, clip=0.5)
    assert_same(plain, ours(seeded(Student), max_grad_norm=0.5))


def test_own_optimizer_gets_the_groups_with_their_multiples() -> None:
    def rate(name: str) -> float:
        return 0.1 * LR if name.startswith("embed") else 0.004 if "blocks.2" in name else LR

    net = seeded(Deep)
    groups = rates(net, rate)
    plain = by_hand(net, groups, "adamw")

    def make(given: Iterable[Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(given, lr=LR, weight_decay=DECAY)

    found = seeded(Deep)
    task = surestep.Task(found, nn.MSELoss(), train=(X, Y), optimizer=make)
    config = surestep.Config(
        epochs=3,
        batch_size=7,
        max_grad_norm=None,
        optim={"groups": ["embed lr=0.1x", "blocks.2 lr=0.004"]},
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    session = prepare(task, config)
    losses = [float(result.loss) for result in session.steps()]
    assert_same(plain, [tensor(losses), weights(found)])
