"""The smallest tasks that still show something: a few samples, a few weights."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from surestep.engine.facts import Facts
from surestep.engine.feed import Feed, feed
from surestep.trainer import Session
from surestep.trainer.prepare import Planned, plan_task

FEATURES, CLASSES = 4, 3
FACTS = Facts(
    torch_version="0",
    cuda_devices=(),
    cuda_memory=(),
    bf16_native=False,
    tf32=False,
    cpus=2,
    threads=1,
    display="none",
)


def data(samples: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features, and classes that can be learned from them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator)
    return x, x[:, :CLASSES].argmax(dim=1)


def model(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)
    )


def task(**parts: Any) -> surestep.Task:
    """A Task whose parts are the usual ones where `parts` says nothing."""
    usual = {"model": parts.get("model") or model(), "loss": nn.CrossEntropyLoss(), "train": data()}
    return surestep.Task(**{**usual, **parts})


def config(**said: Any) -> surestep.Config:
    """A quiet Config; groups as dicts."""
    length = {} if "max_steps" in said else {"epochs": 2}
    logging = {"progress": "quiet", **said.pop("logging", {})}
    return surestep.Config(**{**length, "batch_size": 8, "logging": logging, **said})


def plan(parts: dict[str, Any] | None = None, **said: Any) -> Planned:
    return plan_task(task(**(parts or {})), config(**said))


def train_feed(parts: dict[str, Any], **said: Any) -> Feed:
    planned = plan(parts, **said)
    return feed(
        planned.task.train, "train", task=planned.task, loss=planned.loss, plan=planned.plan
    )


def prepare(run: Path, parts: dict[str, Any] | None = None, **said: Any) -> Session:
    return surestep.prepare(task(**(parts or {})), config(**said), run=run)


def fit(run: Path, parts: dict[str, Any] | None = None, **said: Any) -> surestep.Run:
    return surestep.Trainer(task(**(parts or {})), config(**said), run=run).fit()


def weights(module: nn.Module) -> Tensor:
    """All parameters and buffers in one row."""
    return torch.cat([each.detach().double().flatten() for each in module.state_dict().values()])
