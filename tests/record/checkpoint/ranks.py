"""Run by torchrun on four ranks: save and load a sharded state."""

import errno
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from surestep.base.errors import CheckpointError, SurestepError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.model.frozen_weights import fingerprint
from surestep.engine.state.state import WHOLE, State
from surestep.record.checkpoint import reader as opened
from surestep.record.checkpoint import writer as together
from surestep.record.checkpoint.load import prepare_load
from surestep.record.checkpoint.reader import open_checkpoint
from surestep.record.checkpoint.writer import AsyncSaver
from surestep.trainer.rank_zero import load_checkpoint as load_together
from tests.record.checkpoint.keeper import Fake

RANK = int(os.environ.get("RANK", 0))


class Net(nn.Module):
    """A model with uneven sizes, a tied weight, a buffer and an empty tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.inner = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.narrow = nn.Linear(5, 6, bias=False)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.narrow(self.norm(self.inner(self.embed(x)))))
        return out


def state_of(seed: int, mesh: Any = None, *, steps: int = 0) -> State:
    """Return a state after some steps of AdamW, sharded over a mesh."""
    torch.manual_seed(seed)
    model = Net()
    if mesh is not None:
        fully_shard(model.inner, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = State(model, {WHOLE: optimizer}, torch.amp.GradScaler("cpu", enabled=False))
    for step in range(steps):
        x = torch.arange(14).view(2, 7).roll(step).flatten() % 7
        nn.functional.cross_entropy(model(x), x.flip(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    state.progress = state.progress._replace(step=steps, steps_taken=steps)
    return state


def whole(state: State) -> dict[str, Tensor]:
    """Return every full tensor of the state, on every rank."""
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    found = {f"model/{name}": tensor for name, tensor in state.model.state_dict().items()}
    for parameter, slots in state.optimizer.state.items():
        found |= {f"{names[id(parameter)]}/{slot}": tensor for slot, tensor in slots.items()}
    full = {n: e.full_tensor() if hasattr(e, "full_tensor") else e for n, e in found.items()}
    return {name: tensor.detach().clone() for name, tensor in full.items()}


def saved(folder: Path, state: State, world: Communicator, *, background: bool = True) -> Any:
    folder.mkdir(exist_ok=True)
    dist.barrier(group=world.group)
    saver = AsyncSaver(folder, lambda: None, background=background, world=world)
    saver.save(state)
    saver.wait()
    (outcome,) = saver.outcomes()
    return outcome


class Counted:
    """Counts the elements that this rank reads from files of tensors."""

    elements = 0

    def __init__(self, *args: Any) -> None:
        self.file = Counted.real(*args)

    real = staticmethod(opened.safe_open)

    def __enter__(self) -> "Counted":
        self.file.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        self.file.__exit__(*args)

    def get_tensor(self, name: str) -> Tensor:
        found: Tensor = self.file.get_tensor(name)
        Counted.elements += found.numel()
        return found

    def get_slice(self, name: str) -> Any:
        return _CountedSlice(self.file.get_slice(name))


class _CountedSlice:
    def __init__(self, of: Any) -> None:
        self.of = of

    def __getitem__(self, box: Any) -> Tensor:
        found: Tensor = self.of[box]
        Counted.elements += found.numel()
        return found


def loaded(path: Path, mesh: Any) -> dict[str, Any]:
    """Load into a different state; return its full tensors and how much this rank read."""
    found = open_checkpoint(path, is_verified=True)
    other = state_of(1, mesh)
    opened.safe_open, Counted.elements = Counted, 0
    prepare_load(found, other)()
    opened.safe_open = Counted.real
    return {"whole": whole(other), "read": Counted.elements, "step": other.progress.step}


def fails(folder: Path, state: State, world: Communicator, rank: int, error: Exception) -> str:
    """Raise an error on one rank while it writes; return the error message."""
    real = together.CheckpointFiles.write

    def raising(*args: Any) -> Any:
        if rank == RANK:
            raise error
        return real(*args)

    together.CheckpointFiles.write = raising
    try:
        outcome = saved(folder, state, world)
    finally:
        together.CheckpointFiles.write = real
    assert outcome.path is None
    assert isinstance(outcome.error, CheckpointError)
    return str(outcome.error)


def waits(folder: Path, state: State, world: Communicator) -> str:
    """Save without a thread on the ranks 1 and 3; return what is reported."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread of rank {RANK}")

    if RANK % 2:
        threading.Thread.start = refuse
    try:
        outcome = saved(folder, state, world)
    finally:
        threading.Thread.start = start
    assert outcome.error is None, outcome.error
    return str(outcome.notice)


def unlike(folder: Path, state: State, world: Communicator) -> str:
    """Give the last rank a state that cannot be saved."""
    if RANK == 3:
        state.callback_states["strange"] = _Strange()
    try:
        saved(folder, state, world)
    except CheckpointError as error:
        return str(error)
    finally:
        state.callback_states.clear()
    return "saved"


class _Counter:
    """A state that rank 2 fails to load."""

    def state_dict(self) -> Any:
        return {"count": 1}

    def load_state_dict(self, state: Any) -> None:
        if RANK == 2:
            raise ValueError("an old count")


def rejects_state(folder: Path, state: State, world: Communicator) -> str:
    """Have one rank reject a declared state while all load; return the error of this rank."""
    state.callback_states["counter"] = _Counter()
    path = saved(folder, state, world).path
    try:
        load_together(world, open_checkpoint(path), state)
    except SurestepError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        state.callback_states.clear()
    return "loaded"


def gone(folder: Path, state: State, world: Communicator) -> str:
    """Stop the last rank while the others write, with a short timeout."""
    world.background_group = dist.new_group(timeout=timedelta(seconds=1))
    real = together.CheckpointFiles.write

    def leaving(*args: Any) -> Any:
        if RANK == 3:
            together._gather = left
        return real(*args)

    def left(*args: Any) -> Any:
        raise CheckpointError("left")

    together.CheckpointFiles.write = leaving
    return str(saved(folder, state, world, background=False).error)


class _Strange:
    def state_dict(self) -> Any:
        return {"thing": object()}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {n: [dist.new_group(list(range(n))) for _ in range(2)] for n in (4, 2)}
    worlds = {n: Communicator(RANK, n, *group) for n, group in groups.items()}
    meshes: dict[str, Any] = {
        "four": DeviceMesh("cpu", [0, 1, 2, 3]),
        "hybrid": DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("replicas", "shards")),
        "two": DeviceMesh("cpu", [0, 1]),
    }
    found: dict[str, Any] = {"expected": {}, "loaded": {}, "words": {}}
    for name, mesh in meshes.items():
        world = worlds[2 if name == "two" else 4]
        if world.size <= RANK:
            continue
        state = state_of(0, mesh, steps=3)
        found["expected"][name] = whole(state)
        outcome = saved(out / name, state, world)
        assert outcome.error is None, outcome.error
        found["print"] = fingerprint(state.model.get_parameter("inner.weight"))
        if name == "four":
            full = OSError(errno.ENOSPC, "No space left on device")
            found["words"]["full"] = fails(out / "full", state, world, 2, full)
            found["words"]["unlike"] = unlike(out / "unlike", state, world)
            found["words"]["rejected"] = rejects_state(out / "rejected", state, world)
            found["words"]["waits"] = waits(out / "waits", state, world)
            again = saved(out / "full", state, world, background=False)
            found["again"] = str(again.path)
    dist.barrier()
    for source in [*meshes, "one"]:
        path = out / source / "step-00000003"
        for name, mesh in meshes.items():
            if mesh.size() > RANK:
                found["loaded"][source, name] = loaded(path, mesh)
    found["kept"] = apart(out, worlds[4])
    found["gone"] = gone(out / "gone", state_of(0, meshes["four"]), worlds[4])
    torch.save(found, out / f"rank-{RANK}.pt")
    dist.barrier()
    dist.destroy_process_group()


def apart(out: Path, world: Communicator) -> dict[str, Any]:
    """Save and load a state whose tensors a keeper owns."""
    state = state_of(0, steps=3)
    expected = whole(state)
    state.keeper = Fake(state, RANK, 4)
    outcome = saved(out / "kept", state, world)
    assert outcome.error is None, outcome.error
    alive = state.keeper.most_alive
    other = state_of(1)
    other.keeper = Fake(other, RANK, 4)
    prepare_load(open_checkpoint(out / "four" / "step-00000003"), other)()
    return {"expected": expected, "whole": other.keeper.whole(), "alive": alive}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
