"""The results of a run, for a bitwise comparison: state as digests, and events."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surestep import Callback
from surestep.engine.state.state import State
from surestep.trainer.session import Session
from tests.laws.support.tasks import snapshot, tensors_in


def digest(tensor: Tensor) -> str:
    """Return a digest of type, shape and bits."""
    tensor = tensor.detach().cpu().contiguous()
    bits = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + bits).hexdigest()[:24]


def outcome(session: Session) -> dict[str, Any]:
    """Return everything that a run has come to, with digests of its tensors."""
    state = session.state
    tensors = {name: digest(tensor) for name, tensor in snapshot(session).items()}
    return {
        "tensors": tensors,
        "place": state.progress._asdict(),
        "counts": asdict(state.counts),
        "standing": asdict(state.best),
        "plateau": {name: repr(value) for name, value in vars(state.plateau).items()},
        "scaler": state.scaler.state_dict(),
    }


def differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Name everything that differs, bit for bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = []
        for key in sorted(a.keys() | b.keys(), key=str):
            found += differences(a.get(key, "nothing"), b.get(key, "nothing"), f"{name}/{key}")
        return found
    return [] if repr(a) == repr(b) else [f"{name}: {a!r} and {b!r}"]


def digest_of(state: State) -> str:
    """Return a digest of what each step moves; counts are known at log points only."""
    whole = sha256(repr((state.progress, state.scaler.state_dict())).encode())
    parts = [tensors_in(state.model.state_dict(), "model")]
    for name, optimizer in state.optimizers.items():
        parts.append(tensors_in(optimizer.state_dict()["state"], name))
    if state.average is not None:
        parts.append(tensors_in(dict(state.average.tensors), "average"))
    for part in parts:
        for name, tensor in part.items():
            whole.update(f"{name} {digest(tensor)}".encode())
    return whole.hexdigest()[:24]


class Trace(Callback):
    """Writes a line for what a process has loaded, and for each of its steps."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, state: State) -> None:
        self.path.write_text(f"{state.progress.step} {digest_of(state)}\n", encoding="utf-8")

    def on_step(self, state: State, result: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{state.progress.step} {digest_of(state)}\n")


def read_trace(path: Path) -> list[tuple[int, str]]:
    """Read the lines of a trace, the first of which is what was loaded."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
    return [(int(step), value) for step, value in lines]


def events_of(lines: Iterable[str]) -> dict[str, Any]:
    """Return the steps and the evaluations that a run reported, each once.

    What a resume has cut off counts once: as it was done again. It must have been the same before.

    Raises:
        AssertionError: a step is reported twice without a resume between, or differently.
    """
    kept: dict[str, dict[int, Any]] = {"steps": {}, "evaluations": {}}
    cut: dict[str, dict[int, Any]] = {"steps": {}, "evaluations": {}}
    for line in lines:
        event = json.loads(line)
        if event["event"] in ("resume", "restart"):
            for kind, values in kept.items():
                for step in [each for each in values if each > event["step"]]:
                    cut[kind][step] = values.pop(step)
        for kind, step, value in _entries(event):
            before = cut[kind].get(step, value)
            assert step not in kept[kind], f"{kind}: step {step} is reported twice"
            assert before == value, f"{kind}: step {step} was {before}, and {value} once more"
            kept[kind][step] = value
    return kept


def _entries(event: dict[str, Any]) -> list[tuple[str, int, Any]]:
    if event["event"] == "evaluation":
        return [("evaluations", event["step"], {"metrics": event["metrics"]})]
    if event["event"] != "steps":
        return []
    columns = [event[name] for name in ("loss", "grad_norm", "lr")]
    rows = enumerate(zip(*columns, strict=True), event["first"])
    return [("steps", step, list(values)) for step, values in rows]


def read_events(folder: Path) -> dict[str, Any]:
    """Read what a run folder tells; a last line that is torn is left out."""
    text = (folder / "events.jsonl").read_text(encoding="utf-8")
    return events_of(text[: text.rfind("\n") + 1].splitlines())
