"""Law 3: every optimizer equals torch's, bit for bit, in each implementation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import NonFiniteError
from surestep.engine.optim.registry import BUILT_IN as OPTIMIZERS
from tests.laws.support.loss_cases import tokens
from tests.laws.support.plain import distance, order_of
from tests.laws.support.registry_entries.optimizers import ENTRIES, Words, deep
from tests.laws.support.tasks import assert_same, mlp, rows, train

Folder = Callable[[], Path]
STEPS, BATCH = 20, 16
# Options of a class whose defaults would hide a difference.
OPTIONS: dict[str, dict[str, Any]] = {
    "adadelta": {"rho": 0.8},
    "adafactor": {"d": 2.0, "eps": (None, 1e-2)},
    "adagrad": {"lr_decay": 0.1, "initial_accumulator_value": 0.1},
    "adam": {"amsgrad": True, "decoupled_weight_decay": True},
    "adamw": {"amsgrad": True, "betas": (0.8, 0.9)},
    "asgd": {"t0": 5.0, "lambd": 0.1},
    "nadam": {"momentum_decay": 0.1},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "rprop": {"etas": (0.4, 1.3)},
    "sgd": {"momentum": 0.9, "nesterov": True},
}
WHOLE = [name for name in OPTIMIZERS if name not in ("adamw8bit", "lbfgs", "muon", "sparse_adam")]
CHOICES = [
    (name, choice)
    for name in WHOLE
    for choice in ("fused", "foreach", "for_loop")
    if choice == "plain" or choice in OPTIMIZERS[name].signature
]


def batches(x: Tensor, y: Tensor, steps: int = STEPS) -> Any:
    step, epoch = 0, 0
    while step < steps:
        order = order_of(len(x), 0, epoch)
        for start in range(0, len(x), BATCH):
            chosen = order[start : start + BATCH]
            yield x[chosen], y[chosen]
            step += 1
            if step == steps:
                return
        epoch += 1


def decayed(model: nn.Module, decay: float | None) -> list[dict[str, Any]]:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    rest = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    if decay is None:
        return [{"params": list(model.parameters())}]
    return [{"params": matrices, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def plain(model: nn.Module, optimizers: list[torch.optim.Optimizer], data: Any) -> None:
    """Train a loop with the documented arithmetic: a sum of losses, divided once."""
    loss_of = nn.CrossEntropyLoss(reduction="sum")
    for x, y in batches(*data):
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss_of(model(x), y) / len(x)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()


def named(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def trained(folder: Folder, parts: dict[str, Any], **optim: Any) -> surestep.State:
    task = surestep.Task(loss=nn.CrossEntropyLoss(), **parts)
    return train(task, folder(), max_steps=STEPS, batch_size=BATCH, optim=optim).state


@pytest.mark.parametrize(("name", "choice"), CHOICES)
def test_every_implementation_is_bitwise_equal_to_torch(folder, name, choice):
    options, model = OPTIONS.get(name, {}), mlp()
    settings = {"name": name, "lr": 0.01, "implementation": choice, **options}
    has_decay = "weight_decay" in OPTIMIZERS[name].signature
    if has_decay:
        settings["weight_decay"] = 0.1
    ours = trained(folder, {"model": mlp(), "train": rows()}, **settings)
    known = OPTIMIZERS[name].signature
    flags = {key: key == choice for key in ("foreach", "fused") if key in known}
    groups = decayed(model, 0.1 if has_decay else None)
    kind: Any = OPTIMIZERS[name].kind
    plain(model, [kind(groups, lr=0.01, **options, **flags)], rows())
    assert_same(named(model), named(ours.model))
    assert ours.counts.skipped == 0


@pytest.fixture
def default_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def in_float64(parts: dict[str, Any]) -> dict[str, Any]:
    x, y = parts["train"]
    is_number = x.is_floating_point()
    return {"model": parts["model"].double(), "train": (x.double() if is_number else x, y)}


@pytest.mark.parametrize("name", WHOLE)
def test_every_optimizer_equals_torch_if_the_default_dtype_is_float64(
    folder, name, default_float64
):
    parts, model = in_float64({"model": mlp(), "train": rows()}), mlp().double()
    settings: dict[str, Any] = {"lr": 0.01, **OPTIONS.get(name, {})}
    if "weight_decay" in OPTIMIZERS[name].signature:
        settings["weight_decay"] = 0.0
    ours = trained(folder, parts, name=name, **settings)
    kind: Any = OPTIMIZERS[name].kind
    plain(model, [kind(model.parameters(), **settings)], parts["train"])
    assert distance(model, ours.model) < 1e-12


@pytest.mark.parametrize("name", ["lbfgs", "muon", "sparse_adam"])
def test_default_dtype_does_not_change_an_optimizer(folder, name):
    entry, weights = ENTRIES[name], []
    for dtype in (torch.float32, torch.float64):
        parts = in_float64(entry.parts())
        torch.set_default_dtype(dtype)
        try:
            weights.append(named(trained(folder, parts, **entry.options["optim"]).model))
        finally:
            torch.set_default_dtype(torch.float32)
    assert_same(*weights)


def test_muon_updates_hidden_matrices_and_adamw_the_rest(folder):
    parts = deep()
    ours = trained(
        folder,
        {"model": parts["model"], "train": parts["train"]},
        **{"name": "muon", "lr": 0.02, "adamw_lr": 0.003, "weight_decay": 0.1, "momentum": 0.9},
    )
    model = deep()["model"]
    hidden = [model[0].weight, model[3].weight]
    rest = [
        parameter for parameter in model.parameters() if not any(parameter is one for one in hidden)
    ]
    muon = torch.optim.Muon(hidden, lr=0.02, momentum=0.9, weight_decay=0.1)
    groups = [
        {"params": [parameter for parameter in rest if parameter.dim() > 1], "weight_decay": 0.1},
        {"params": [parameter for parameter in rest if parameter.dim() < 2], "weight_decay": 0.0},
    ]
    plain(model, [muon, torch.optim.AdamW(groups, lr=0.003, fused=True)], parts["train"])
    assert_same(named(model), named(ours.model))


SPARSE = {
    "sparse_adam": lambda table: torch.optim.SparseAdam([table], lr=0.01),
    "adagrad": lambda table: torch.optim.Adagrad([table], lr=0.01, foreach=False),
    "sgd": lambda table: torch.optim.SGD([table], lr=0.01, foreach=False),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # in torch's Adagrad
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_are_clipped_and_used_as_in_torch(folder, name):
    """The norm is always exceeded; torch's clipping does not accept sparse gradients."""
    x, y = tokens()
    data = (x, y.clamp(min=0))
    task = surestep.Task(model=Words(), loss=nn.CrossEntropyLoss(), train=data)
    settings = {"name": name, "lr": 0.01, "weight_decay": 0.0}
    ours = train(
        task, folder(), max_steps=STEPS, batch_size=BATCH, optim=settings, max_grad_norm=0.01
    )
    assert ours.state.counts.clipped == STEPS
    model = Words()
    rest = list(model.head.parameters())
    other = {
        "sparse_adam": lambda: torch.optim.AdamW(rest, lr=0.01, weight_decay=0.0),
        "adagrad": lambda: torch.optim.Adagrad(rest, lr=0.01),
        "sgd": lambda: torch.optim.SGD(rest, lr=0.01),
    }[name]()
    optimizers = [SPARSE[name](model.table.weight), other]
    for x, y in batches(*data):
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        grads = [parameter.grad.to_dense() for parameter in model.parameters()]
        factor = 0.01 / (torch.cat([grad.flatten() for grad in grads]).norm() + 1e-6)
        for parameter in model.parameters():
            grad = parameter.grad
            parameter.grad = (grad.coalesce() if grad.is_sparse else grad) * factor
        for optimizer in optimizers:
            optimizer.step()
    assert distance(model, ours.model) < 1e-5
    assert ours.model.table.weight.grad.is_sparse


def closed(
    model: nn.Module, data: Any, reduction: str = "mean", **options: Any
) -> torch.optim.Optimizer:
    """Train L-BFGS in a plain loop: a closure over a full batch, with the usual loss."""
    optimizer = torch.optim.LBFGS(model.parameters(), **options)
    for x, y in batches(*data, steps=8):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y, reduction=reduction)
            loss.backward()
            return loss

        optimizer.step(closure)
    return optimizer


@pytest.mark.parametrize("micro_batch_size", [16, 5])
@pytest.mark.parametrize(
    ("search", "reduction"), [(None, "mean"), ("strong_wolfe", "mean"), ("strong_wolfe", "sum")]
)
def test_lbfgs_equals_torchs_with_a_closure_over_the_full_batch(
    folder, search, reduction, micro_batch_size
):
    options = {"lr": 0.5, "max_iter": 4, "history_size": 5, "line_search_fn": search}
    loss = nn.CrossEntropyLoss(reduction=reduction)
    task = surestep.Task(mlp(torch.float64), loss, rows(dtype=torch.float64))
    settings = {"batch_size": BATCH, "micro_batch_size": micro_batch_size}
    ours = train(task, folder(), max_steps=8, optim={"name": "lbfgs", **options}, **settings)
    model = mlp(torch.float64)
    optimizer = closed(model, rows(dtype=torch.float64), reduction, **options)
    assert distance(model, ours.model) < 1e-9
    (own,), (plain_torch,) = ours.optimizer.state.values(), optimizer.state.values()
    assert own["func_evals"] == plain_torch["func_evals"] > 16


class Cliff(nn.Module):
    """A loss that is not finite beyond an edge that a line search may cross."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1), 0.9))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.log(1 - self.weight) * x


def test_line_search_that_meets_a_nonfinite_loss_updates_nothing(folder):
    task = surestep.Task(Cliff(), nn.L1Loss(), (torch.ones(32, 1), -10 * torch.ones(32, 1)))
    optim = {"name": "lbfgs", "lr": 10.0, "max_iter": 3}
    session = train(task, folder(), max_steps=2, batch_size=32, optim=optim, on_nonfinite="skip")
    assert float(session.model.weight.detach()) == pytest.approx(0.9)
    assert session.state.counts.nonfinite == 2
    assert not session.optimizer.state
    with pytest.raises(NonFiniteError, match="its loss is nan"):
        train(task, folder(), max_steps=2, batch_size=32, optim=optim)
