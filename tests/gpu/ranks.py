"""Run each rank, started by torchrun: every strategy, on GPUs or on the CPU."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import surestep
from surestep.engine.distributed.shards import full_tensor
from surestep.trainer.session import Session
from tests.multi_rank.cases import data, net, task, trained
from tests.multi_rank.fsdp import whole_weights
from tests.multi_rank.strategies import plain_weights

FSDP = {"parallel": {"strategy": "fsdp"}}
# In full precision, with 100 samples: BatchNorm rejects a batch of one.
USUAL: dict[str, Any] = {"precision": "fp32", "micro_batch_size": 4}
SAMPLES = 100


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))


def made(model: Callable[[], nn.Module] = net) -> surestep.Task:
    return task(data(samples=SAMPLES), model)


def gathered(session: Session) -> dict[str, Tensor]:
    """Return the full weights of shards on the host, which NCCL cannot gather."""
    return {name: full_tensor(each) for name, each in session.model.state_dict().items()}


# Model, options, and the function that returns the full weights.
WAYS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Callable[..., Any]]] = {
    "ddp": (net, {"parallel": {"strategy": "ddp"}}, plain_weights),
    "fsdp": (net, FSDP, whole_weights),
    "offload": (net, {"parallel": {"strategy": "fsdp", "offload": "all"}}, gathered),
    "bf16": (net, {**FSDP, "precision": "bf16"}, whole_weights),
    "norm": (
        *(normed, {"parallel": {"sync_batchnorm": True}, "micro_batch_size": None}),
        plain_weights,
    ),
}


def options(way: str, device: str) -> dict[str, Any]:
    return {**USUAL, "device": device, **WAYS[way][1]}


def alone(folder: Path, way: str, device: str) -> dict[str, Any]:
    """Train in one process what the ranks train."""
    said = {name: each for name, each in options(way, device).items() if name != "parallel"}
    return on_host(trained(folder, made(WAYS[way][0]), **said))


def on_host(found: dict[str, Any]) -> dict[str, Any]:
    weights = {name: each.detach().cpu().clone() for name, each in found["weights"].items()}
    return {**found, "weights": weights}


def where(session: Session) -> dict[str, Any]:
    """Save, and return the device of each part."""
    session.save()
    found: dict[str, Any] = {"plan": str(session.plan.device)}
    if session.plan.device.type == "cuda":
        found["current"] = torch.cuda.current_device()
        found["cuda"] = torch.zeros(1, device="cuda").device.index
    parts: list[Any] = list(session.model.parameters())
    local: list[Tensor] = [getattr(each, "_local_tensor", each) for each in parts]
    return {**found, "lie": sorted({str(each.device) for each in local})}


def main(out: Path, device: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for name, (model, _, weights) in WAYS.items():
        if device == "cpu" and name == "norm":  # torch supports it on GPUs only
            continue
        came = trained(
            out / name, made(model), weights=weights, shows=where, **options(name, device)
        )
        found[name] = on_host(came)
    if device == "cuda":
        found["current after"] = torch.cuda.current_device()
    torch.save(found, out / f"rank-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
