"""Models, data and training functions that several laws share."""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import surestep
from surestep.trainer.session import Session

QUIET = {"progress": "quiet"}


def mlp(dtype: torch.dtype = torch.float32, outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    hidden = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU())
    return nn.Sequential(hidden, nn.Linear(32, outputs)).to(dtype)


def with_dropout() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))


def with_batchnorm() -> nn.Module:
    torch.manual_seed(1)
    hidden = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(0.2))
    return nn.Sequential(hidden, nn.ReLU(), nn.Linear(16, 3))


def rows(samples: int = 55, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 10, generator=generator, dtype=dtype)
    return x, torch.randint(0, 3, (samples,), generator=generator)


class Augmented(Dataset):
    """A dataset that draws from the generators of torch, numpy and Python."""

    def __init__(self, samples: int = 44) -> None:
        self.x, self.y = rows(samples)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = 0.1 * torch.randn(10) + 0.1 * np.random.rand() + 0.1 * random.random()
        return self.x[index] + noise.float(), self.y[index]


def session_of(
    task: surestep.Task,
    folder: Path,
    *,
    callbacks: Iterable[surestep.Callback] = (),
    logging: dict[str, Any] | None = None,
    **options: Any,
) -> Session:
    config = surestep.Config(logging={**QUIET, **(logging or {})}, **options)
    return surestep.prepare(task, config, run=folder, callbacks=list(callbacks))


def train(
    task: surestep.Task, folder: Path, *, steps: int | None = None, **options: Any
) -> Session:
    """Train to the end, or for some steps; return the closed session."""
    with session_of(task, folder, **options) as session:
        for result in session.steps():
            if result.step == steps:
                break
    return session


def snapshot(session: Session) -> dict[str, Any]:
    """Copy what a step may change: weights, buffers, moments, averages, schedule."""
    kept: dict[str, Any] = {
        f"model/{name}": value.clone() for name, value in session.model.state_dict().items()
    }
    for name, optimizer in session.state.optimizers.items():
        for index, slots in optimizer.state_dict()["state"].items():
            kept |= tensors_in(slots, f"{name}/{index}")
    average = session.evaluations._evaluator.average()  # with recomputed statistics, as it is saved
    for name, value in average.tensors.items() if average is not None else ():
        kept[f"average/{name}"] = value.clone()
    kept["steps_taken"] = torch.tensor(session.state.progress.steps_taken)
    return kept


def tensors_in(value: Any, name: str) -> dict[str, Tensor]:
    """Copy all leaves of lists and dicts as tensors, by path; None as an empty tensor."""
    if isinstance(value, (list, tuple, dict)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [tensors_in(value, f"{name}/{key}") for key, value in inner]
        return {key: tensor for part in parts for key, tensor in part.items()}
    return {name: torch.as_tensor([] if value is None else value).clone()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Assert that two snapshots are equal bit for bit."""
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different, f"not bitwise equal: {different}"


def assert_moved(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Assert that the weights differ, so that a comparison of them says something."""
    assert any(not torch.equal(a[name], b[name]) for name in a if name.startswith("model/"))


Check = Callable[[Callable[[], Path]], None]
