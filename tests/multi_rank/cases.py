"""What runs both in one process and on several ranks: tasks, options and results."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from surestep.base.errors import NonFiniteError
from surestep.trainer.session import Session

SAMPLES = 101  # batches of 20 leave one sample, so all ranks but one have none


def data(*, samples: int = SAMPLES, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return x.to(dtype), (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()


def masked() -> tuple[Tensor, Tensor]:
    """Return targets with long ignored ranges, so that a rank may have no items."""
    x, y = data()
    y[20:40] = -100
    y[50:55] = -100
    return x, y


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def net64() -> nn.Module:
    return net().double()


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(1) == targets).float().mean()


def task(train: Any = None, model: Callable[[], nn.Module] = net, **parts: Any) -> surestep.Task:
    train = data() if train is None else train
    metrics = {"accuracy": accuracy}
    val, loss = data(dtype=train[0].dtype), nn.CrossEntropyLoss()
    return surestep.Task(model, loss, train=train, val=val, metrics=metrics, **parts)


def opened(
    folder: Path, made: surestep.Task, *, from_: str | None = None, **options: Any
) -> Session:
    # An epoch has 6 steps, so each run ends one and `half` stops in the second. The ranks together
    # evaluate 100 samples at once, so the last batch has one as well. By default they are as few as
    # in a micro-batch.
    usual: dict[str, Any] = {"max_steps": 10, "batch_size": 20, "optim": {"lr": 1e-2}}
    if made.val is not None:
        usual["validation"] = {"batch_size": 100 // int(os.environ.get("WORLD_SIZE", "1"))}
    config = surestep.Config(**{**usual, "logging": {"progress": "quiet"}, **options})
    return surestep.prepare(made, config, run=folder, from_=from_)


def result(session: Session) -> dict[str, Any]:
    weights = {name: each.clone() for name, each in session.model.state_dict().items()}
    talks = session.loop.world.n_collectives
    return {"weights": weights, "place": tuple(session.state.progress), "talks": talks}


def trained(
    folder: Path,
    made: surestep.Task,
    *,
    weights: Callable[[Session], dict[str, Tensor]] | None = None,
    shows: Callable[[Session], dict[str, Any]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a run to its end; return weights, position, losses and metrics.

    Args:
        folder: of the run.
        made: what is trained.
        weights: returns the whole weights, where the model does not hold them.
        shows: what else there is to say of the session at its end.
        options: of the Config.
    """
    with opened(folder, made, **options) as session:
        losses = [float(each.loss) for each in session.steps()]
        found = {**result(session), "losses": losses, "metrics": session.evaluate()}
        if weights is not None:
            found["weights"] = weights(session)
        return {**found, "shown": None if shows is None else shows(session)}


def half(
    folder: Path, made: Callable[[], surestep.Task] | None = None, **options: Any
) -> dict[str, Any]:
    """Stop after 7 steps with a checkpoint, which any number of ranks can resume."""
    with opened(folder, task() if made is None else made(), **options) as session:
        for each in session.steps():
            if each.step == 7:
                session.save()
                break
    return result(session)


SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9}
TINY = nn.CrossEntropyLoss(weight=torch.tensor([3.0, 1.0, 2.0]) * 2**-22)  # below a millionth
CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "adamw": lambda folder: trained(folder, task()),
    "micro-batches": lambda folder: trained(folder, task(), micro_batch_size=3),
    "sgd": lambda folder: trained(folder, task(), optim=SGD, micro_batch_size=4),
    "clipped": lambda folder: trained(folder, task(), max_grad_norm=0.01, micro_batch_size=7),
    "masked": lambda folder: trained(
        folder, task(masked()), micro_batch_size=2, data={"shuffle": False}
    ),
    "frozen at first": lambda folder: trained(
        folder, task(), optim={"lr": 1e-2, "groups": ["0.* freeze='4 steps' lr=0.5x"]}
    ),
    "average": lambda folder: trained(folder, task(), average={"kind": "ema", "decay": 0.9}),
    "tiny weights": lambda folder: trained(
        folder, surestep.Task(net, TINY, train=data(), val=data(), metrics={"accuracy": accuracy})
    ),
    "fp64": lambda folder: trained(
        folder, task(data(dtype=torch.float64), net64), micro_batch_size=3
    ),
}


def poisoned(
    folder: Path,
    poison: tuple[int, ...] = (59,),
    train: Callable[[], tuple[Tensor, Tensor]] = data,
    value: float = float("nan"),
    parallel: dict[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Train with NaN samples in step 3, of the last rank by default; all ranks stop before it."""
    x, y = train()
    x[list(poison)] = value
    made = task((x, y), **parts)
    options: dict[str, Any] = {"data": {"shuffle": False}, "micro_batch_size": 3}
    if parallel is not None:
        options["parallel"] = parallel
    with opened(folder, made, **options) as session:
        try:
            for _ in session.steps():
                pass
        except NonFiniteError as error:
            found = {"failed": error.step, "samples": error.samples, "module": error.module}
            found |= {"said": str(error), "incident": error.incident}
            found |= {"operation": error.operation}
            return {**result(session), **found}
        return {**result(session), "failed": None}


def own_batches(folder: Path, parallel: dict[str, Any] | None = None) -> dict[str, Any]:
    """Take steps on custom batches; the third has a NaN in its fifteenth row."""
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    x, y = data()
    x[54] = float("nan")
    options = {} if parallel is None else {"parallel": parallel}
    with opened(folder, task(), **options) as session:
        try:
            for rows in torch.arange(60).split(20):
                share = rows.chunk(ranks)[rank]
                session.train_step([(x[part], y[part]) for part in share.split(3)])
            session.loop.log.take()
        except NonFiniteError as error:
            found = {"failed": error.step, "rows": error.positions, "incident": error.incident}
            return {**found, "place": tuple(session.state.progress)}
    return {"failed": None}


OF_PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "poisoned on two": partial(poisoned, poison=(41, 59)),
    "own batches": own_batches,
}
POISONED: dict[str, Callable[[Path], dict[str, Any]]] = {
    "poisoned": poisoned,
    "poisoned on two": lambda folder: poisoned(folder, (41, 59)),
    "poisoned and masked": lambda folder: poisoned(folder, train=masked),
}
