"""The small run that is killed: 58 samples, 20 steps, a checkpoint every 2 steps."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import surestep
from tests.torture.cases import Case

SAMPLES, BATCH, STEPS = 58, 10, 20
STEPS_PER_EPOCH = 6
WIDTH, SAVE_EVERY = 32, 2


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 10, generator=generator)
    return x, torch.randint(0, 3, (SAMPLES,), generator=generator)


def noise(by: str, size: tuple[int, ...]) -> Tensor:
    """Draw from the generator that a dataset of this kind uses."""
    if by == "torch":
        return 0.1 * torch.randn(size)
    if by == "numpy":
        return 0.1 * torch.from_numpy(np.random.standard_normal(size)).float()
    if by == "random":
        return torch.tensor([random.gauss(0, 0.1) for _ in range(int(np.prod(size)))]).view(size)
    return torch.zeros(size)


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples by index, augmented."""

    def __init__(self, augmentation: str) -> None:
        self.x, self.y = rows()
        self.augmentation = augmentation

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + noise(self.augmentation, (10,)), self.y[index]


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream of augmented samples in a new order each epoch, with `state_dict`."""

    def __init__(self, augmentation: str) -> None:
        self.rows = Rows(augmentation)
        self.epoch = self.read = self.start = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "read": self.read}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.start = state["epoch"], state["read"]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = list(range(SAMPLES))
        random.Random(self.epoch).shuffle(order)
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = order[worker::workers]
        self.read, self.start = self.start, 0  # a loaded state applies to one pass
        while self.read < len(mine):
            self.read += 1
            yield self.rows[mine[self.read - 1]]


def jitter(by: str) -> Any:
    """Return a transform that augments batches of tensors."""
    if by == "none":
        return None
    return lambda inputs, targets: (inputs + noise(by, tuple(inputs.shape)), targets)


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.argmax(1) == targets).float().mean()


class Cooling(nn.Module):
    """Sharpens its outputs with each call, which it counts in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (2 - 1 / self.calls)


def task(case: Case, *, metric: Any = accuracy, width: int = WIDTH) -> surestep.Task:
    """Build the Task of a case."""
    model = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(10, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Dropout(0.3 if case.dropout else 0.0),
        nn.Linear(width, 3),
        Cooling(),
    )
    train: Any = rows()
    if case.data != "tensors":
        train = (Rows if case.data == "map" else Stream)(case.augmentation)
    return surestep.Task(
        model,
        nn.CrossEntropyLoss(),
        train,
        val=rows(),
        metrics={"accuracy": metric},
        batch_transform=jitter(case.augmentation) if case.data == "tensors" else None,
    )


def config(
    case: Case, *, resumed: bool, steps: int = STEPS, save_every: int = SAVE_EVERY
) -> surestep.Config:
    """Return the Config of a case, before the first kill or after it."""
    return surestep.Config.from_options(
        {
            "max_steps": steps,
            "batch_size": BATCH,
            "data.num_workers": _workers(case, resumed=resumed),
            "precision": case.precision,
            "optim.lr": 0.01,
            "schedule.name": "cosine",
            "schedule.warmup": "3 steps",
            "checkpoint.every": f"{save_every} steps",
            "validation.every": "5 steps",
            "logging.every": "4 steps",
            "logging.progress": "quiet",
            "early_stop.patience": 1000,
            **({"micro_batch_size": 4} if case.accumulation else {}),
            # From 2**20 the first steps overflow, and the scale grows again within the run.
            **(FP16 if case.precision == "fp16" else {}),
            **({"average.kind": "ema", "average.decay": 0.9} if case.average else {}),
        }
    )


FP16 = {"scaler.init_scale": 2.0**20, "scaler.growth_interval": 3}


def _workers(case: Case, *, resumed: bool) -> int:
    if case.workers != "other":
        return int(case.workers)
    before, after = (0, 1) if case.data == "stream" else (2, 0)
    return after if resumed else before
