"""Saving the state of a session, and checking that its checkpoints fit on the disk."""

import shutil
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from surestep.base.errors import CheckpointError, RunError
from surestep.base.text import format_bytes
from surestep.engine.batch import tensor_bytes
from surestep.engine.distributed.communicator import Communicator
from surestep.engine.optim.param_groups import parameters_of
from surestep.engine.optim.state_size import state_bytes
from surestep.engine.plan.plan import Plan
from surestep.engine.schedule.lr import cycle_ends
from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.callback import SavedCheckpoint
from surestep.engine.step.log_point import LogPoint
from surestep.engine.step.loop import Loop
from surestep.engine.step.part import Part
from surestep.engine.value import Metrics
from surestep.record.checkpoint.discovery import checkpoint_name, list_checkpoints, size_on_disk
from surestep.record.checkpoint.staging import check_can_be_saved
from surestep.record.checkpoint.writer import SaveResult
from surestep.record.run_writer import RunWriter
from surestep.trainer.evaluator import Evaluator

DISK_MAY_FILL = "THE DISK MAY FILL UP"


class CheckpointManager(Part):
    """Saves the state of a session; on several ranks all of them call each method.

    `step` is that of the newest save that did not fail.
    """

    def __init__(
        self,
        recorder: RunWriter,
        loop: Loop,
        evaluator: Evaluator,
        print_line: Callable[[str], None],
        is_closed: Callable[[], bool],
    ) -> None:
        self.step: int | None = None
        self._recorder = recorder
        self._loop = loop
        self._evaluator = evaluator
        self._print_line, self._is_closed = print_line, is_closed
        self._pending = 0  # saves whose result the ranks do not know yet
        self._metrics = deque[tuple[int, Metrics]]()  # of the pending saves, in order

    def on_first_step(self, state: State) -> None:
        """Check that the state can be saved, now that the optimizers have theirs."""
        check_can_be_saved(state)

    def on_log(self, state: State, point: LogPoint) -> None:
        """Report the saves that are done."""
        if self._loop.world.size == 1 or not self._is_closed():  # no barriers while closing
            self.collect()

    def on_rollback(self, state: State) -> None:
        """Save again what was saved of the steps that are undone."""
        self.forget()

    def loaded(self) -> None:
        """Count the current state as saved: it was loaded from a checkpoint of this run."""
        self.step = self._loop.state.progress.step

    def forget(self) -> None:
        """Count the current state as not saved."""
        self.step = None

    @property
    def is_current(self) -> bool:
        """Whether the current state has been saved, or is being saved."""
        return self.step == self._loop.state.progress.step

    def ensure_saved(self) -> Path:
        """Save the current step if it has no checkpoint, and wait; return its folder."""
        self.flush()
        return self._recorder.checkpoints / checkpoint_name(self._loop.state.progress.step)

    def save_async(self) -> None:
        """Save the current state, waiting only until it is copied if a thread writes.

        A failure is reported at the next log point, and the next save tries again.
        """
        self._save()
        self.collect()

    def save(self) -> Path:
        """Save the current state, and wait until it is written; return its folder."""
        self.collect(wait=True)
        self._save()
        (result,) = self._results(wait=True)
        if result.path is None:
            assert result.error is not None
            self.step = None
            raise result.error
        self._handle(result)
        return result.path

    def flush(self) -> None:
        """Wait for pending saves; save the current step if it has no checkpoint."""
        self.collect(wait=True)
        if any(self._loop.world.all_reduce_sum([not self.is_current])):
            self.save()

    def collect(self, *, wait: bool = False) -> None:
        """Handle the results of the saves that are done, or of all of them."""
        for result in self._results(wait=wait):
            self._handle(result)

    def wait(self) -> None:
        """Wait for what this rank writes, without the other ranks."""
        for result in self._recorder.collect_saves(wait=True):
            self._handle(result)

    def _results(self, *, wait: bool) -> list[SaveResult]:
        """Return the results on rank 0, on all ranks: what they do next depends on them."""
        with self._loop.log.pause_clock():
            results = self._recorder.collect_saves(wait=wait)
            if self._pending:
                results = _broadcast_results(self._loop.world, results)
        self._pending -= len(results)
        return results

    def _save(self) -> None:
        loop = self._loop
        loop.log.take()
        with loop.log.pause_clock():
            self._evaluator.sync_buffers()
            self._evaluator.average()
            # Before the save: its result is handled if Ctrl-C comes right after it has begun.
            step, best = loop.state.progress.step, loop.state.best
            metrics = Metrics(best.latest if best.latest_step == step else {})
            self._metrics.append((step, metrics))
            self._recorder.save(loop.state, loop.plan)
            self._pending += 1
            if loop.world.size > 1:
                with _long_timeout(loop.world):  # so that no step waits while rank 0 writes
                    loop.world.barrier()
        self.step = step

    def _handle(self, result: SaveResult) -> None:
        """Report a result, and call the callbacks."""
        loop, step = self._loop, None
        while step != result.step:  # a save that was interrupted before it began has no result
            step, metrics = self._metrics.popleft()
        if result.path is not None:
            saved = SavedCheckpoint(result.path, result.step, metrics)
            loop.parts.call("on_save", saved)
        elif self.step == result.step:
            self.step = None
        if result.notice:
            self._report(result.step, result.notice)
        if result.error is None:
            return
        if not isinstance(result.error, CheckpointError):
            raise result.error
        text = str(result.error)
        if result.path is None:
            text = f"{text} The run continues, and the next save tries again."
        self._report(result.step, text)

    def _report(self, step: int, text: str) -> None:
        self._recorder.event("notice", step=step, text=text)
        self._print_line(text)


def _broadcast_results(world: Communicator, results: list[SaveResult]) -> list[SaveResult]:
    if world.size == 1:
        return results
    texts = [{"path": str(r.path or ""), "error": str(r.error or "")} for r in results]
    sent = [vars(result) | text for result, text in zip(results, texts, strict=True)]
    with _long_timeout(world):
        received = world.broadcast_json(sent)
    if world.is_first:
        return results
    for values in received:
        values["path"] = Path(values["path"]) if values["path"] else None
        values["error"] = CheckpointError(values["error"]) if values["error"] else None
    return [SaveResult(**values) for values in received]


def _long_timeout(world: Communicator) -> AbstractContextManager[None]:
    """Return the context in which the other ranks wait long for rank 0, and it not for them."""
    return nullcontext() if world.is_first else world.long_timeout()


def check_disk_space(folder: Path, plan: Plan, state: State) -> str | None:
    """Return a warning if not all checkpoints will fit; raise a RunError if not even one does."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    if not usage.total:  # some file systems do not report their size
        return None
    existing = list_checkpoints(folder / "checkpoints")
    size = size_on_disk(existing[-1]) if existing else estimate_checkpoint_bytes(plan, state)
    free, count = usage.free, _max_checkpoints(plan)
    if size > free:
        raise RunError(
            f"A checkpoint of this run takes about {format_bytes(size)}, and {format_bytes(free)} "
            f"are free on the disk of {folder}: none could be saved. Free some space, or choose a "
            "different folder with --run (run= in Python)."
        )
    free += sum(map(size_on_disk, existing))
    if count * size <= free:
        return None
    return (
        f"{DISK_MAY_FILL}: up to {count} checkpoints of about {format_bytes(size)} take "
        f"{format_bytes(count * size)}, and the disk of {folder} has {format_bytes(free)} for "
        "them. Set a smaller checkpoint.keep_last or keep_best or a longer keep_every, free some "
        "space, or choose a different folder with --run (run= in Python)."
    )


def _max_checkpoints(plan: Plan) -> int:
    """Return how many checkpoints are on the disk at once at most, with the one being written."""
    best = plan.checkpoint_keep_best if plan.validation_metric else 0
    count: int = plan.checkpoint_keep_last + best + len(cycle_ends(plan.schedule)) + 1
    if best and plan.on_spike == "rollback":
        count += 1
    if plan.checkpoint_keep_every is not None:
        count += int(plan.total_steps / plan.checkpoint_keep_every.steps(plan.steps_per_epoch))
    if plan.checkpoint_mirror is not None:
        count += 1  # deleted here, but still being copied
    return min(count, int(plan.total_steps))


def estimate_checkpoint_bytes(plan: Plan, state: State) -> int:
    """Return the size of the tensors of a checkpoint, with the state of the optimizers."""
    trained = list(trainable_parameters(state.model).values())
    saves_all = plan.checkpoint_weights == "all"
    total = tensor_bytes(state.model.parameters() if saves_all else trained)
    total += tensor_bytes(state.model.buffers())
    for name, optimizer in state.optimizers.items():
        own = plan.optimizers.get(name, plan)
        parameters = list(parameters_of(optimizer))
        total += state_bytes(own.optim_name, own.optim_options, state.model, parameters) or 0
    return total + (0 if state.average is None else tensor_bytes(state.average.stored.values()))
