"""Several ranks as one run: the first holds the folder and decides, and the others follow."""

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from surestep.base.errors import CheckpointError, ParallelError, RunError, SurestepError
from surestep.engine.batch import Batch
from surestep.engine.data.batch_loader import BatchLoader
from surestep.engine.diagnose.rerun import preserve_state
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.distributed.hang_monitor import is_network_error
from surestep.engine.parallel.strategy import strategy_class
from surestep.engine.plan.plan import Plan
from surestep.engine.state.state import State
from surestep.engine.step.train_step import StepContext, forward_backward
from surestep.record.checkpoint.load import prepare_load
from surestep.record.checkpoint.reader import CheckpointReader, open_checkpoint
from surestep.record.checkpoint.writer import SaveResult
from surestep.record.lock import lock_owner
from surestep.record.run import Run, SelectedWeights, Which
from surestep.record.run_writer import RunWriter
from surestep.trainer.fork import RunParent
from surestep.trainer.rank_consistency import check_no_unused_params
from surestep.trainer.resume import ResumeDecision

T = TypeVar("T")
_LATE_S = 10.0  # what another machine wrote is seen by then
_GLANCE_S = 0.05


def run_on_rank_zero(
    world: Communicator,
    act: Callable[[], T],
    *,
    tell: Callable[[T], Any],
    follow: Callable[[Any], T],
) -> T:
    """Let the first rank act, and the others follow what it tells; its errors are theirs too.

    Args:
        world: the ranks.
        act: what the first one does.
        tell: what the others need to know of it, as JSON can hold it.
        follow: what the others make of that.

    Raises:
        ParallelError: on the others, where the first one failed.
    """
    if world.size == 1:
        return act()
    if world.is_first:
        try:
            value = act()
        except SurestepError as error:
            world.broadcast_json({"error": f"{type(error).__name__}: {error}"})
            raise
        world.broadcast_json({"said": tell(value)})
        return value
    with world.long_timeout():
        answer = world.broadcast_json(None)
    if "error" in answer:
        raise ParallelError(f"Rank 0 could not go on: {answer['error']}")
    return follow(answer["said"])


def open_verified(path: str) -> CheckpointReader:
    """Open a checkpoint that rank 0 has just verified."""
    return open_checkpoint(Path(path), is_verified=True)


def choose_checkpoint(world: Communicator, run: Run, which: Which) -> SelectedWeights:
    """Choose a checkpoint of a run on all ranks; rank 0 verifies it."""

    def follow(said: dict[str, Any]) -> SelectedWeights:
        checkpoint = open_verified(said["path"])
        return SelectedWeights(checkpoint.saved, checkpoint, said["average"])

    return run_on_rank_zero(
        world,
        lambda: run.choose(which),
        tell=lambda found: {"path": str(found.opened.path), "average": found.average},
        follow=follow,
    )


def load_checkpoint(world: Communicator, checkpoint: CheckpointReader, state: State) -> None:
    """Load a checkpoint on all ranks, in place, when each of them has read what it needs.

    Raises:
        CheckpointError: it does not fit, or cannot be read, here; the states are as they were.
        ParallelError: another rank failed. If it failed after all had read, as a callback's
            load_state_dict() may, the state of this rank is the loaded one.
    """
    if world.size == 1:
        prepare_load(checkpoint, state)()
        return
    load = _of_all(world, checkpoint, lambda: prepare_load(checkpoint, state))
    _of_all(world, checkpoint, load)


def _of_all(world: Communicator, checkpoint: CheckpointReader, act: Callable[[], T]) -> T:
    """Return what a part of loading returns; raise on all ranks if it fails on one."""
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


def warm_up_ddp(parts: StepContext, feed: BatchLoader, plan: Plan) -> None:
    """Go forward and backward once, on several ranks, so that no later step is unlike the others.

    DDP puts the gradients into other buckets after its first backward, and where a gradient lies
    decides in which order it is added up. A run that goes on would add up its first step otherwise
    than one that never stopped. Everything is put back.

    Raises:
        TaskError: DDP would wait for a gradient that does not come.
    """
    batch = feed.move(next(feed.batches(0)))
    if feed.transform is not None:
        batch = feed.transform(batch, 0)
    # With a static graph DDP learns from the first backward what is unused, and waits for none.
    learns = plan.parallel_find_unused_parameters or plan.parallel_static_graph
    if parts.strategy.copies_model and not learns:
        check_no_unused_params(parts, batch)
    with preserve_state(parts):
        forward_backward(parts, batch, 1.0)


def offset_positions(world: Communicator, batch: Batch) -> Batch:
    """Return a rank's share of a batch of the user's own, with the positions that it has in all.

    The ranks' shares stand one behind the other, as one process would be given them.
    """
    counts = [0.0] * world.size
    counts[world.rank] = batch.samples
    before = int(sum(world.all_reduce_sum(counts)[: world.rank]))
    moved = [each._replace(position=each.position + before) for each in batch.micro_batches]
    return batch._replace(micro_batches=tuple(moved))


def broadcast_save_results(world: Communicator, outcomes: list[SaveResult]) -> list[SaveResult]:
    """Return what came of the first rank's saves, on all ranks."""
    if world.size == 1:
        return outcomes
    told = [
        (each.step, str(each.path or ""), str(each.error or ""), each.seconds, each.blocked_s)
        for each in outcomes
    ]
    with _patient(world):
        said = world.broadcast_json(told)
    if world.is_first:
        return outcomes
    return [
        SaveResult(
            step,
            Path(path) if path else None,
            CheckpointError(error) if error else None,
            seconds,
            waited_s,
        )
        for step, path, error, seconds, waited_s in said
    ]


def wait_while_rank_zero_writes(world: Communicator) -> None:
    """Wait for the first rank as long as it writes, so that no step waits for it."""
    if world.size > 1:
        with _patient(world):
            world.barrier()


def _patient(world: Communicator) -> AbstractContextManager[None]:
    """Return the context in which the others wait long for the first rank, and it not for them."""
    return nullcontext() if world.is_first else world.long_timeout()


def open_run_folder(
    world: Communicator, open_folder: Callable[[], RunWriter], *, plan: Plan
) -> RunWriter:
    """Open the run folder on the first rank, which holds it; the others only read from it.

    Args:
        world: the ranks.
        open_folder: for the first one.
        plan: where ranks share the model each writes its part, and all must see the folder.

    Raises:
        RunError: this rank does not see it.
    """

    def follow(said: dict[str, str]) -> RunWriter:
        folder = Path(said["folder"])
        copies = strategy_class(plan.parallel_strategy).copies_model
        if not copies and not is_same_folder(folder, said["held"]):
            raise RunError(
                f"Rank {world.rank} on {socket.gethostname()} does not see {folder} as rank 0 "
                "does. All ranks read and write checkpoints: pass a run folder that all machines "
                "share, by its full path, with --run-folder (run= in Python)."
            )
        return RunWriter(folder, world=world)

    return run_on_rank_zero(
        world,
        open_folder,
        tell=lambda recorder: {"folder": str(recorder.folder), "held": recorder.lock_text},
        follow=follow,
    )


def is_same_folder(folder: Path, held_by: str) -> bool:
    """Say whether this is the folder that the first rank holds; a network's may come late."""
    end = time.monotonic() + _LATE_S
    while not (found := lock_owner(folder) == held_by) and time.monotonic() < end:
        time.sleep(_GLANCE_S)
    return found


def broadcast_resume_decision(
    world: Communicator, decide: Callable[[], ResumeDecision]
) -> ResumeDecision:
    """Let the first rank decide how the run goes on, and from which checkpoint."""

    def follow(said: dict[str, Any]) -> ResumeDecision:
        path, branch = said["checkpoint"], None
        checkpoint = None if path is None else open_verified(path)
        if said["branch"] is not None:
            assert checkpoint is not None
            folder, which = said["branch"]
            branch = RunParent(Run(Path(folder)), which, checkpoint.saved)
        return ResumeDecision(
            {},
            checkpoint,
            finished=said["finished"],
            branch=branch,
            other_metric=said["other_metric"],
        )

    return run_on_rank_zero(
        world,
        decide,
        tell=lambda going: {
            "checkpoint": None if going.checkpoint is None else str(going.checkpoint.path),
            "finished": going.finished,
            "branch": going.branch and [str(going.branch.run.path), going.branch.which],
            "other_metric": going.other_metric,
        },
        follow=follow,
    )
