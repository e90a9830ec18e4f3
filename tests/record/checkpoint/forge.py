"""Forged checkpoints whose hashes are correct."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from surestep.engine.plan.specs import AveragingSpec
from surestep.engine.state.average import AveragedWeights
from surestep.engine.state.state import State
from surestep.record.checkpoint.manifest import MANIFEST, RECORD, add_self_hash
from tests import tiny


def state_of(steps: int = 2, seed: int = 0) -> State:
    """Return a state with optimizer moments, an average and a loss scale."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    state = tiny.state_of(net, steps=0)
    state.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    state.scaler.scale(torch.ones(()))
    for step in range(steps):
        tiny.move(state, seed + step)
    averaging = AveragingSpec("ema", 0.9, False, 0, 1, "average", None, 0)
    state.average = AveragedWeights(averaging, net, net.parameters())
    state.best.metric, state.best.best, state.best.best_step = "val/loss", 0.5, 1
    state.best.latest, state.best.latest_step = {"val/loss": 0.75}, steps
    state.metadata = {"words": ["of", "one's own"]}
    return state


def seal(path: Path, manifest: dict[str, Any], *, rehash: bool = True) -> None:
    """Write a manifest with the hashes of the files and of itself."""
    for name, entry in manifest.get("files", {}).items() if rehash else ():
        data = (path / name).read_bytes()
        entry.update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    text = json.dumps({**manifest, "sha256": "0" * 64})
    (path / MANIFEST).write_text(add_self_hash(text), encoding="utf-8")


def manifest_of(path: Path) -> dict[str, Any]:
    """Read a manifest without checks."""
    found: dict[str, Any] = json.loads((path / MANIFEST).read_text())
    return found


def forge(path: Path, name: str, data: bytes) -> None:
    """Replace the bytes of a file, and update the manifest."""
    (path / name).write_bytes(data)
    seal(path, manifest_of(path))


def forge_record(path: Path, **changes: Any) -> None:
    """Set values of the record by name; `a__b` is b in a."""
    record = json.loads((path / RECORD).read_text())
    for dotted, value in changes.items():
        within = record
        *names, last = dotted.split("__")
        for name in names:
            within = within[name]
        within[last] = value
    forge(path, RECORD, json.dumps(record).encode())
