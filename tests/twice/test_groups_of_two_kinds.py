"""Groups of optimizers that share the work, and of models that are unusual."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import surestep
from tests.twice.compare import OPENED, assert_same, in_batches, prepare, weights

X = torch.randn(43, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = X[:, :2] @ torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
WORDS = torch.randint(0, 11, (43, 3), generator=torch.Generator().manual_seed(3))
NEXT = (5 * WORDS[:, 0] + 2) % 11
LR, DECAY = 0.02, 0.3
tensor = torch.tensor


def seeded(make: Callable[[], nn.Module], *, double: bool = True) -> Any:
    torch.manual_seed(0)
    return make().double() if double else make()


def by_hand(
    net: Any,
    optimizers: list[torch.optim.Optimizer],
    data: tuple[Tensor, Tensor],
    loss: Any,
    schedulers: Any = (),
    clip: float | None = None,
) -> list[Any]:
    losses = []
    for _ in range(2):
        for x, y in in_batches(7, *data):
            for optimizer in optimizers:
                optimizer.zero_grad()
            value = loss(net(x), y)
            value.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
            for scheduler in schedulers:
                scheduler.step()
            losses.append(value.item())
    return [tensor(losses), weights(net)]


def ours(net: Any, data: Any, loss: Any, optim: Any, task: Any = None, **options: Any) -> list[Any]:
    made = surestep.Task(net, loss, train=data, **task or {})
    config = surestep.Config(
        **{"epochs": 2, "batch_size": 7, "max_grad_norm": None} | options,
        optim=optim,
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    session = prepare(made, config)
    return [tensor([float(result.loss) for result in session.steps()]), weights(net)]


class Words(nn.Module):
    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4, sparse=sparse)
        self.mix, self.norm = nn.Linear(4, 6), nn.LayerNorm(6)
        self.hidden, self.head = nn.Linear(6, 6), nn.Linear(6, 11)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(torch.tanh(self.mix(self.table(x).mean(dim=1))))
        return self.head(torch.tanh(self.hidden(hidden)))


def split(net: Any, names: Any, rate: Callable[[str], float], *, decays: bool = True) -> Any:
    """Return a group for each parameter of which the name is chosen."""
    found = []
    for name, p in net.named_parameters():
        if names(name):
            group = {"params": [p], "lr": rate(name)}
            if decays:
                is_flat = p.dim() < 2 or name == "table.weight"
                group["weight_decay"] = 0.0 if is_flat else DECAY
            found.append(group)
    return found


def test_sparse_rows_and_other_weights_have_their_own_rates_under_one_schedule() -> None:
    cross, net = nn.functional.cross_entropy, seeded(Words)

    def rate(name: str) -> float:
        return 0.5 * 0.01 if name.startswith("head") else 0.01

    sparse = torch.optim.SparseAdam(split(net, "table.weight".__eq__, lambda _: LR, decays=False))
    dense = torch.optim.AdamW(split(net, lambda name: name != "table.weight", rate))
    both = [sparse, dense]
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 14) for o in both]
    plain = by_hand(net, both, (WORDS, NEXT), cross, schedulers)
    optim = {
        **{"name": "sparse_adam", "lr": LR, "adamw_lr": 0.01, "weight_decay": DECAY},
        "groups": ["head lr=0.5x"],
    }
    found = ours(
        seeded(Words), (WORDS, NEXT), nn.CrossEntropyLoss(), optim, schedule={"name": "cosine"}
    )
    assert_same(plain, found)


def test_muon_updates_hidden_matrices_and_adamw_the_rest_with_multiples() -> None:
    cross = nn.functional.cross_entropy
    net = seeded(lambda: Words(False), double=False)
    hidden = ("mix.weight", "hidden.weight")

    def rate(name: str) -> float:
        base = LR if name in hidden else 1e-3
        return 0.1 * base if name.startswith(("hidden", "table")) else base

    muon = torch.optim.Muon(split(net, hidden.__contains__, rate), lr=LR)
    rest = torch.optim.AdamW(split(net, lambda name: name not in hidden, rate), betas=(0.8, 0.9))
    plain = by_hand(net, [muon, rest], (WORDS, NEXT), cross, clip=1.0)
    optim = {
        **{"name": "muon", "lr": LR, "weight_decay": DECAY, "betas": (0.8, 0.9)},
        "groups": ["hidden lr=0.1x", "table lr=0.1x"],
    }
    net = seeded(lambda: Words(False), double=False)
    found = ours(net, (WORDS, NEXT), nn.CrossEntropyLoss(), optim, max_grad_norm=1.0)
    assert_same(plain, found)


def test_layers_of_a_list_fall_with_their_normalization() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            *(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh()),
            *(nn.Linear(5, 5), nn.LayerNorm(5), nn.Tanh()),
            nn.Linear(5, 1),
        )

    layer = {"0": 2, "1": 2, "3": 1, "4": 1, "6": 0}

    def groups(net: Any) -> Any:
        return split(net, lambda _: True, lambda name: LR * 0.4 ** layer[name[0]])

    net = seeded(make)
    plain = by_hand(net, [torch.optim.AdamW(groups(net))], (X, Y), nn.functional.mse_loss)
    optim = {"name": "adamw", "lr": LR, "weight_decay": DECAY, "layerwise_lr_decay": 0.4}
    assert_same(plain, ours(seeded(make), (X, Y), nn.MSELoss(), optim))


def test_lazy_layers_are_grouped_as_the_layers_they_become() -> None:
    lazy = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(1, bias=False)).double()
    optim = {"name": "adamw", "lr": LR, "weight_decay": DECAY, "groups": ["2.* lr=0.3x"]}
    config = surestep.Config(
        epochs=2,
        batch_size=7,
        max_grad_norm=None,
        optim=optim,
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    session = prepare(surestep.Task(lazy, nn.MSELoss(), train=(X, Y)), config)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1, bias=False)).double()
    net.load_state_dict(weights(lazy))  # surestep has called the model once
    groups = split(net, lambda _: True, lambda name: 0.3 * LR if name[0] == "2" else LR)
    plain = by_hand(net, [torch.optim.AdamW(groups)], (X, Y), nn.functional.mse_loss)
    losses = [float(result.loss) for result in session.steps()]
    assert_same(plain, [tensor(losses), weights(lazy)])


@pytest.mark.parametrize("name", ["0", "0.parametrizations.weight.original1"])
def test_parametrized_weight_is_matched_by_its_module_and_its_own_name(name: str) -> None:
    def make() -> nn.Module:
        first = parametrizations.weight_norm(nn.Linear(4, 5))
        return nn.Sequential(first, nn.Tanh(), nn.Linear(5, 1))

    def rate(own: str) -> float:
        return 0.2 * LR if own == name or own.startswith(f"{name}.") else LR

    net = seeded(make)
    groups = split(net, lambda _: True, rate)
    plain = by_hand(net, [torch.optim.AdamW(groups)], (X, Y), nn.functional.mse_loss)
    optim = {"name": "adamw", "lr": LR, "weight_decay": DECAY, "groups": [f"{name} lr=0.2x"]}
    assert_same(plain, ours(seeded(make), (X, Y), nn.MSELoss(), optim))


class Lists(nn.Module):
    """Parameters in a list and a dict, which have no module around them."""

    def __init__(self) -> None:
        super().__init__()
        self.several = nn.ParameterList([torch.randn(4, 3), torch.randn(3)])
        self.named = nn.ParameterDict({"last": torch.randn(3, 1), "shift": torch.zeros(1)})
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.several[0] + self.several[1])
        return self.scale * (hidden @ self.named["last"]) + self.named["shift"]


def test_parameters_in_lists_and_dicts_are_matched_and_frozen_by_name() -> None:
    net = seeded(Lists)
    net.named["shift"].requires_grad_(False)

    def rate(name: str) -> float:
        return 3 * LR if name.startswith("several") else LR

    groups = split(net, lambda name: name != "named.shift", rate)
    plain = by_hand(net, [torch.optim.AdamW(groups)], (X, Y), nn.functional.mse_loss, clip=0.5)
    optim = {
        **{"name": "adamw", "lr": LR, "weight_decay": DECAY},
        "groups": ["several lr=3x", "named.shift freeze"],
    }
    assert_same(plain, ours(seeded(Lists), (X, Y), nn.MSELoss(), optim, max_grad_norm=0.5))


class Halving(torch.optim.Optimizer):
    """Sign descent with a rate that the optimizer also halves by itself, kept in its groups."""

    def __init__(self, params: Any, lr: float = 0.01, beta: float = 0.5) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "share": 1.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                group["share"] *= 0.9
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        state["mean"] = group["beta"] * state.get("mean", 0.0) + p.grad
                        p.add_(state["mean"].sign(), alpha=-group["lr"] * group["share"])


@pytest.mark.parametrize("stop_at", [0, 5])
def test_own_optimizer_keeps_what_it_changes_in_its_groups(stop_at: int) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    net = seeded(make)
    optimizer = Halving(net.parameters())
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 14)
    plain = by_hand(net, [optimizer], (X, Y), nn.functional.mse_loss, [schedule], clip=0.5)
    config = surestep.Config(
        epochs=2,
        batch_size=7,
        max_grad_norm=0.5,
        schedule={"name": "linear"},
        data={"shuffle": False},
        logging={"progress": "quiet"},
    )
    losses = []
    for end in (stop_at, 0) if stop_at else (0,):
        net = seeded(make)
        task = surestep.Task(net, nn.MSELoss(), train=(X, Y), optimizer=Halving)
        session = prepare(task, config, run="run")
        for result in session.steps():
            losses.append(float(result.loss))
            if result.step == end:
                session.save()
                break
        session.close()
    assert_same(plain, [tensor(losses), weights(net)])


def test_two_runs_of_one_model_have_groups_that_do_not_meet() -> None:
    """The first run freezes and scales; the second trains everything at one rate."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))

    data = X[:34], Y[:34]
    net = seeded(make)
    net[0].requires_grad_(False)
    net[1].requires_grad_(False)
    net.train()
    net[1].eval()
    first = torch.optim.SGD(net[3].parameters(), lr=0.5 * LR)
    one = by_hand(net, [first], data, nn.functional.mse_loss)
    net.requires_grad_(True)
    net.train()
    two = by_hand(net, [torch.optim.SGD(net.parameters(), lr=LR)], data, nn.functional.mse_loss)

    found = seeded(make)
    sgd = {"name": "sgd", "lr": LR, "weight_decay": 0.0, "momentum": 0.0}
    groups = ["0 freeze", "1 freeze", "3 lr=0.5x"]
    results = [ours(found, data, nn.MSELoss(), sgd | {"groups": groups})]
    OPENED.pop().close()
    results.append(ours(found, data, nn.MSELoss(), sgd))
    assert_same([one, two], results)
