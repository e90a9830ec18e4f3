"""Explain errors of memory that runs out: in steps, evaluations, and before the first step."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from surestep.base.errors import OutOfMemoryError
from surestep.engine.device import ran_out
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback
from surestep.engine.step.fitted_steps import find_fixed_part
from surestep.engine.step.part import Part
from surestep.engine.step.train_step import StepResult
from surestep.record.run_writer import RunWriter
from surestep.trainer.memory_failure import Failure
from surestep.trainer.planning import PreparedTask


class ExplainMemory(Part):
    """Writes what is in memory if it runs out, and says what would help.

    Args:
        planned: the task, with its options.
        callbacks: of the user.
        recorder: of the run folder.
        rank: of this process; each rank that ran out writes its own file.
        read_size: returns the current micro-batch size.
    """

    def __init__(
        self,
        planned: PreparedTask,
        callbacks: Iterable[Callback],
        recorder: RunWriter,
        rank: int = 0,
        *,
        read_size: Callable[[], int],
    ) -> None:
        self._planned, self._callbacks = planned, tuple(callbacks)
        self._recorder, self._rank, self._read_size = recorder, rank, read_size

    def on_error(
        self, state: State, error: Exception, place: StepResult | int | None
    ) -> OutOfMemoryError | None:
        """Return an error with the sizes and what to set."""
        if not ran_out(error):
            return None
        from surestep.trainer.out_of_memory import explain_memory  # few runs need it

        step, size = state.progress.step, place if isinstance(place, int) else None
        where, name = f"in step {step + 1}", f"step-{step + 1}"
        if part := find_fixed_part(error):
            where = f"{where}, {part}"
        if size is not None:
            where, name = f"in the evaluation after step {step}", f"evaluation-{step}"
        path = self._recorder.folder / f"out-of-memory-{name}"
        if self._rank:
            path = path.with_name(f"{path.name}-rank-{self._rank}")
        plan = self._planned.plan.replace(micro_batch_size=self._read_size())
        planned, is_fixed = replace(self._planned, plan=plan), bool(part)
        failure = Failure(where, planned, state.model, state, self._callbacks, size, is_fixed)
        return explain_memory(error, failure, path if self._rank or self._recorder.owns else None)


@contextmanager
def explain_memory_errors(failure: Failure) -> Iterator[None]:
    """Explain an error of memory that runs out in a block, without writing files.

    Raises:
        OutOfMemoryError: memory ran out.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        from surestep.trainer.out_of_memory import explain_memory  # few runs need it

        raise explain_memory(error, failure) from error
