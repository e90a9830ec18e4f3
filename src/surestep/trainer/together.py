"""Several ranks as one run: the first holds the folder and decides, and the others follow."""

import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from surestep.base.errors import CheckpointError, ParallelError, RunError, SurestepError
from surestep.engine.data.batch import Batch
from surestep.engine.data.feed import Feed
from surestep.engine.incident.again import untouched
from surestep.engine.parallel.network import is_of_network
from surestep.engine.parallel.world import World
from surestep.engine.plan import COPIES, Plan
from surestep.engine.state import State
from surestep.engine.step import Parts, forward_backward
from surestep.record.checkpoint.divided import answer_of_first, checking, unseen
from surestep.record.checkpoint.manifest import read_manifest
from surestep.record.checkpoint.opened import Opened, open_checkpoint
from surestep.record.checkpoint.read import fitting, load_opened
from surestep.record.checkpoint.saver import Outcome
from surestep.record.follower import Follower
from surestep.record.hold import holder
from surestep.record.recorder import Recorder
from surestep.record.run import Chosen, Run, Which
from surestep.trainer.alike import check_all_used
from surestep.trainer.branching import Branch
from surestep.trainer.resuming import Going

T = TypeVar("T")
_LATE_S = 10.0  # what another machine wrote is seen by then
_GLANCE_S = 0.05


def first(
    world: World, act: Callable[[], T], *, tell: Callable[[T], Any], follow: Callable[[Any], T]
) -> T:
    """Let the first rank act, and the others follow what it tells; its errors are theirs too.

    While it acts, the others verify their share of the checkpoints that it asks for.

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
            world.of_first({"error": f"{type(error).__name__}: {error}"})
            raise
        world.of_first({"said": tell(value)})
        return value
    answer = answer_of_first(world)
    if "error" in answer:
        raise ParallelError(f"Rank 0 could not go on: {answer['error']}")
    return follow(answer["said"])


def reopened(path: str) -> Opened:
    """Open a checkpoint that all ranks have just verified together."""
    return open_checkpoint(Path(path), check=read_manifest)


def chosen(world: World, run: Run, which: Which) -> Chosen:
    """Choose a checkpoint of a run on all ranks, which verify it together."""

    def follow(said: dict[str, Any]) -> Chosen:
        checkpoint = reopened(said["path"])
        return Chosen(checkpoint.saved, checkpoint, said["average"])

    return first(
        world,
        lambda: run.choose(which, check=checking(world)),
        tell=lambda found: {"path": str(found.opened.path), "average": found.average},
        follow=follow,
    )


def loaded(world: World, checkpoint: Opened, state: State) -> None:
    """Load a checkpoint on all ranks, in place, when each of them has read what it needs.

    Raises:
        CheckpointError: it does not fit, or cannot be read, here; the states are as they were.
        ParallelError: another rank failed. If it failed after all had read, as a callback's
            load_state_dict() may, the state of this rank is the loaded one.
    """
    if world.size == 1:
        load_opened(checkpoint, state)
        return
    load = _of_all(world, checkpoint, lambda: fitting(checkpoint, state))
    _of_all(world, checkpoint, load)


def _of_all(world: World, checkpoint: Opened, act: Callable[[], T]) -> T:
    """Return what a part of loading returns; raise on all ranks if it fails on one."""
    try:
        value = act()
    except Exception as error:
        if not is_of_network(error):
            world.texts(f"{type(error).__name__}: {error}")
        raise
    for rank, text in enumerate(world.texts("")):
        if text:
            raise ParallelError(f"Rank {rank} could not load {checkpoint.path}: {text}")
    return value


def settle(parts: Parts, feed: Feed, plan: Plan) -> None:
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
    if plan.parallel_kind in COPIES and not learns:
        check_all_used(parts, batch)
    with untouched(parts):
        forward_backward(parts, batch, 1.0)


def behind_others(world: World, batch: Batch) -> Batch:
    """Return a rank's share of a batch of the user's own, with the positions that it has in all.

    The ranks' shares stand one behind the other, as one process would be given them.
    """
    counts = [0.0] * world.size
    counts[world.rank] = batch.samples
    before = int(sum(world.sums(counts)[: world.rank]))
    moved = [each._replace(position=each.position + before) for each in batch.micro_batches]
    return batch._replace(micro_batches=tuple(moved))


def of_first(world: World, outcomes: list[Outcome]) -> list[Outcome]:
    """Return what came of the first rank's saves, on all ranks."""
    if world.size == 1:
        return outcomes
    told = [
        (each.step, str(each.path or ""), str(each.error or ""), each.seconds, each.waited_s)
        for each in outcomes
    ]
    with _patient(world):
        said = world.of_first(told)
    if world.is_first:
        return outcomes
    return [
        Outcome(
            step,
            Path(path) if path else None,
            CheckpointError(error) if error else None,
            seconds,
            waited_s,
        )
        for step, path, error, seconds, waited_s in said
    ]


def wait_for_first(world: World) -> None:
    """Wait for the first rank as long as it writes, so that no step waits for it."""
    if world.size > 1:
        with _patient(world):
            world.meet()


def _patient(world: World) -> AbstractContextManager[None]:
    """Return the context in which the others wait long for the first rank, and it not for them."""
    return nullcontext() if world.is_first else world.patiently()


def held(world: World, open_folder: Callable[[], Recorder], *, plan: Plan) -> Recorder:
    """Open the run folder on the first rank, which holds it; the others only read from it.

    Args:
        world: the ranks.
        open_folder: for the first one.
        plan: where ranks share the model each writes its part, and all must see the folder.

    Raises:
        RunError: this rank does not see it.
    """

    def follow(said: dict[str, str]) -> Recorder:
        folder = Path(said["folder"])
        if plan.parallel_kind not in COPIES and not sees(folder, said["held"]):
            raise RunError(unseen(folder, world.rank, socket.gethostname()))
        return Follower(folder, world)

    return first(
        world,
        open_folder,
        tell=lambda recorder: {"folder": str(recorder.folder), "held": recorder.held_by},
        follow=follow,
    )


def sees(folder: Path, held_by: str) -> bool:
    """Say whether this is the folder that the first rank holds; a network's may come late."""
    end = time.monotonic() + _LATE_S
    while not (found := holder(folder) == held_by) and time.monotonic() < end:
        time.sleep(_GLANCE_S)
    return found


def decided(world: World, decide: Callable[[], Going]) -> Going:
    """Let the first rank decide how the run goes on, and from which checkpoint."""

    def follow(said: dict[str, Any]) -> Going:
        path, branch = said["checkpoint"], None
        checkpoint = None if path is None else reopened(path)
        if said["branch"] is not None:
            assert checkpoint is not None
            folder, which = said["branch"]
            branch = Branch(Run(Path(folder)), which, checkpoint.saved)
        return Going(
            {},
            checkpoint,
            finished=said["finished"],
            branch=branch,
            other_metric=said["other_metric"],
        )

    return first(
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
