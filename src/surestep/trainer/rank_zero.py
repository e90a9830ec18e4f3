"""Several ranks as one run: rank 0 holds the folder and decides, and the others follow."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from surestep.base.errors import ParallelError, RunError, SurestepError
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.hang_monitor import is_network_error
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.record.checkpoint.load import prepare_load
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.lock import lock_owner
from surestep.record.run import Run, SelectedWeights, Which
from surestep.record.run_writer import RunWriter
from surestep.trainer.resume import ResumeDecision

T = TypeVar("T")
_NETWORK_DELAY_S = 10.0  # a network file system shows a new file after at most this long
_POLL_S = 0.05


def run_on_rank_zero(
    world: Communicator,
    act: Callable[[], T],
    *,
    encode: Callable[[T], Any] = lambda value: value,
    decode: Callable[[Any], T] = lambda value: value,
) -> T:
    """Run a function on rank 0, and return its result on all ranks.

    It is sent as JSON, made by `encode` and read by `decode`. If the function raises an error, the
    other ranks raise a ParallelError.
    """
    if world.size == 1:
        return act()
    if world.is_first:
        try:
            value = act()
        except SurestepError as error:
            world.broadcast_json({"error": f"{type(error).__name__}: {error}"})
            raise
        world.broadcast_json({"value": encode(value)})
        return value
    with world.long_timeout():
        answer = world.broadcast_json(None)
    if "error" in answer:
        raise ParallelError(f"Rank 0 failed: {answer['error']}")
    return decode(answer["value"])


def open_verified(path: str) -> CheckpointReader:
    """Open a checkpoint that rank 0 has just verified."""
    return open_checkpoint(Path(path), is_verified=True)


def choose_checkpoint(world: Communicator, run: Run, which: Which) -> SelectedWeights:
    """Choose a checkpoint of a run on all ranks; rank 0 verifies it."""

    def decode(values: dict[str, Any]) -> SelectedWeights:
        checkpoint = open_verified(values["path"])
        return SelectedWeights(checkpoint.saved, checkpoint, values["average"])

    return run_on_rank_zero(
        world,
        lambda: run.choose(which),
        encode=lambda chosen: {"path": str(chosen.opened.path), "average": chosen.average},
        decode=decode,
    )


def load_checkpoint(world: Communicator, checkpoint: CheckpointReader, state: State) -> None:
    """Load a checkpoint on all ranks, in place, after each of them has read what it needs.

    If it cannot be read or does not fit on one rank, no rank has changed its state. If a rank fails
    later, as a callback's load_state_dict() may, the state of the others is the loaded one.
    """
    if world.size == 1:
        prepare_load(checkpoint, state)()
        return
    load = _run_on_all(world, checkpoint, lambda: prepare_load(checkpoint, state))
    _run_on_all(world, checkpoint, load)


def _run_on_all(world: Communicator, checkpoint: CheckpointReader, act: Callable[[], T]) -> T:
    """Run one phase of loading; raise an error on all ranks if it fails on one."""
    try:
        value = act()
    except Exception as error:
        if not is_network_error(error):
            world.all_gather_text(f"{type(error).__name__}: {error}")
        raise
    for rank, text in enumerate(world.all_gather_text("")):
        if text:
            raise ParallelError(f"Rank {rank} could not load {checkpoint.path}: {text}")
    return value


def open_run_folder(
    world: Communicator, open_folder: Callable[[], RunWriter], *, plan: Plan
) -> RunWriter:
    """Open the run folder on rank 0, which locks it; the others only read from it.

    If the ranks share the model, each writes its shards, so all of them must see the folder.
    """

    def decode(values: dict[str, str]) -> RunWriter:
        folder = Path(values["folder"])
        copies = strategy_class(plan.parallel_strategy).copies_model
        if not copies and not is_same_folder(folder, values["lock"]):
            raise RunError(
                f"Rank {world.rank} on {socket.gethostname()} does not see {folder} as rank 0 "
                "does. All ranks read and write checkpoints: pass a run folder that all machines "
                "share, by its full path, with --run-folder (run= in Python)."
            )
        return RunWriter(folder, world=world)

    return run_on_rank_zero(
        world,
        open_folder,
        encode=lambda recorder: {"folder": str(recorder.folder), "lock": recorder.lock_text},
        decode=decode,
    )


def is_same_folder(folder: Path, lock_text: str) -> bool:
    """Return whether this is the folder that rank 0 has locked."""
    end = time.monotonic() + _NETWORK_DELAY_S
    while not (is_same := lock_owner(folder) == lock_text) and time.monotonic() < end:
        time.sleep(_POLL_S)
    return is_same


def broadcast_resume_decision(
    world: Communicator, decide: Callable[[], ResumeDecision]
) -> ResumeDecision:
    """Decide on rank 0 how the run resumes, and from which checkpoint."""

    def encode(decision: ResumeDecision) -> dict[str, Any]:
        checkpoint, parent = decision.checkpoint, decision.parent
        return {
            "checkpoint": None if checkpoint is None else str(checkpoint.path),
            "finished": decision.finished,
            "parent": None if parent is None else str(parent),
            "is_other_metric": decision.is_other_metric,
            "identity": {"validation": decision.identity["validation"]},
        }

    def decode(values: dict[str, Any]) -> ResumeDecision:
        checkpoint, parent = values["checkpoint"], values["parent"]
        opened = {
            "checkpoint": None if checkpoint is None else open_verified(checkpoint),
            "parent": None if parent is None else Path(parent),
        }
        return ResumeDecision(**(values | opened))

    return run_on_rank_zero(world, decide, encode=encode, decode=decode)
