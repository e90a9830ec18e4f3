"""Train with norms and histograms by layer, with each strategy; the runs have the events."""

from pathlib import Path
from typing import Any

import torch

import surestep
from tests.multi_rank.cases import data, net64, opened

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "fsdp": {"strategy": "fsdp"},
    "grad_op": {"strategy": "fsdp", "shard": "grad_op"},
    "offload": {"strategy": "fsdp", "offload": "all"},
}


def train(folder: Path, parallel: dict[str, Any] | None = None) -> None:
    """Train on micro-batches, with clipping and an incomplete last batch."""
    x, y = data(dtype=torch.float64)
    options: dict[str, Any] = {} if parallel is None else {"parallel": parallel}
    options |= {"micro_batch_size": 3, "max_grad_norm": 0.05, "max_steps": 12}
    options["logging"] = {"every": "4 steps", "per_layer": True, "histograms": "4 steps"}
    options["logging"]["progress"] = "quiet"
    task = surestep.Task(net64, "multiclass", train=(x, y))
    with opened(folder, task, **options) as session:
        list(session.steps())


def main(folder: Path) -> None:
    for name, parallel in STRATEGIES.items():
        train(folder / name, parallel)
