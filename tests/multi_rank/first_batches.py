"""First batches on ranks: a rank without items, BatchNorm with one sample."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

import surestep
from tests.multi_rank.cases import data, net, opened, trained
from tests.multi_rank.fsdp import whole_weights

BATCH = 20
FIRST_RANK, LAST_RANK, EVERY_RANK = range(10), range(10, 20), range(20)


def masked(rows: range) -> tuple[Tensor, Tensor]:
    x, y = data()
    y[rows.start : rows.stop] = -100
    return x, y


class Rows(Dataset[Any]):
    def __init__(self, rows: range) -> None:
        self.x, self.y = masked(rows)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Flow(IterableDataset[Any]):
    def __init__(self, rows: range) -> None:
        self.rows = Rows(rows)

    def __iter__(self) -> Any:
        return (self.rows[index] for index in range(len(self.rows)))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(x).tanh()
        return {"one": self.one(x), "two": self.two(x)}


def split(batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    return batch["inputs"], {"one": batch["one"], "two": batch["two"]}


def two_losses(first: range = LAST_RANK, second: range = FIRST_RANK) -> surestep.Task:
    """Make a task in whose first batch each rank has items of one loss only."""
    (x, one), (_, two) = masked(first), masked(second)
    losses = {"one": nn.CrossEntropyLoss(), "two": nn.CrossEntropyLoss()}
    train = {"inputs": x, "one": one, "two": two}
    return surestep.Task(TwoHeads, losses, train=train, inputs=split)


def plain(train: Any) -> surestep.Task:
    return surestep.Task(net, nn.CrossEntropyLoss(), train=train, val=data())


def train(folder: Path, make: Callable[[], surestep.Task], **options: Any) -> dict[str, Any]:
    return trained(folder, make(), **{"data": {"shuffle": False}, "max_steps": 8, **options})


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def error_of(folder: Path, train: Any, model: Callable[[], nn.Module], **options: Any) -> str:
    """Return the error that rejects a run."""
    try:
        opened(folder, surestep.Task(model, nn.CrossEntropyLoss(), train=train), **options)
    except surestep.SurestepError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


class InTraining(nn.Linear):
    """Returns its loss in training, of samples that it may draw."""

    def __init__(self, *, reduction: str, draws: bool) -> None:
        super().__init__(6, 3)
        self.reduction, self.draws = reduction, draws

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        scores = super().forward(x)
        if targets is None:
            return scores
        if self.draws:
            scores = scores + 0.1 * torch.randn_like(scores)
        return {"ce": nn.functional.cross_entropy(scores, targets, reduction=self.reduction)}


def in_training(folder: Path, *, strategy: str, **options: Any) -> str:
    """Return the error of a model whose loss is declared as a mean over samples."""
    model, items = partial(InTraining, **options), lambda batch: len(batch[1])
    task = surestep.Task(model, "model in training", train=data(), items=items)
    try:
        opened(folder, task, parallel={"strategy": strategy}).close()
    except surestep.SurestepError as error:
        return str(error)
    return "accepted"


IN_TRAINING: dict[str, Callable[[Path], str]] = {
    f"in training, {strategy}, {reduction}, {draws}": partial(
        in_training, strategy=strategy, reduction=reduction, draws=draws
    )
    for strategy in ("ddp", "fsdp")
    for reduction in ("mean", "sum")
    for draws in (False, True)
}
REFUSED: dict[str, Callable[[Path], str]] = {
    "all ignored": partial(error_of, train=masked(range(101)), model=net),
    "one sample at the end": partial(error_of, train=data(), model=normed),
    "one sample a rank": partial(error_of, train=data(), model=normed, batch_size=2),
}


def skipped(folder: Path, **options: Any) -> dict[str, Any]:
    """Skip a step in which samples of the last rank are NaN; return the record of it."""
    x, y = data()
    x[[35, 38]] = torch.nan
    said = {"on_nonfinite": "skip", "data": {"shuffle": False}, "max_steps": 4, **options}
    with opened(folder, plain((x, y)), **said) as session:
        list(session.steps())
    return {"skipped": session.run.skipped.samples}


def unheld(folder: Path, *, is_replaced: bool, **options: Any) -> str:
    """Train a layer that no optimizer has; return the error."""
    scale = nn.Parameter(torch.ones(3))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs if is_replaced else outputs * scale, targets)

    task = surestep.Task(net, loss, train=data(), items="samples")
    try:
        with opened(folder, task, **options) as run:
            for result in run.steps():
                if is_replaced and result.step == 2:
                    run.model[2] = nn.Linear(16, 3)
    except surestep.SurestepError as error:
        return str(error)
    return "not refused"


UNHELD: dict[str, Callable[[Path], str]] = {
    f"unheld, {strategy}, {is_replaced}": partial(
        unheld, is_replaced=is_replaced, parallel={"strategy": strategy}
    )
    for strategy in ("ddp", "fsdp")
    for is_replaced in (False, True)
}
CASES: dict[str, Callable[..., dict[str, Any]]] = {
    "first rank": partial(train, make=lambda: plain(masked(FIRST_RANK))),
    "last rank": partial(train, make=lambda: plain(masked(LAST_RANK))),
    "every rank": partial(train, make=lambda: plain(masked(EVERY_RANK))),
    "micro-batches": partial(train, make=lambda: plain(masked(LAST_RANK)), micro_batch_size=3),
    "rows": partial(train, make=lambda: plain(Rows(LAST_RANK))),
    "workers": partial(
        train,
        make=lambda: plain(Rows(LAST_RANK)),
        data={"shuffle": False, "num_workers": 1},
    ),
    "stream": partial(train, make=lambda: plain(Flow(LAST_RANK))),
    "stream, every rank": partial(train, make=lambda: plain(Flow(EVERY_RANK))),
    "two losses": partial(train, make=two_losses),
}
ON_RANKS: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in CASES},
    "last rank, fsdp": {"parallel": {"strategy": "fsdp"}, "weights": whole_weights},
    "every rank, fsdp": {"parallel": {"strategy": "fsdp"}, "weights": whole_weights},
}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, options in ON_RANKS.items():
        found[name] = CASES[name.removesuffix(", fsdp")](out / name, **options)
    found |= {name: case(out / name) for name, case in (REFUSED | UNHELD | IN_TRAINING).items()}
    found["skipped"] = skipped(out / "skipped")
    found["skipped, fsdp"] = skipped(out / "skipped in parts", parallel={"strategy": "fsdp"})
    torch.save(found, out / f"rank-{os.environ['RANK']}.pt")
