"""Between two log points, no code of the program reads a value from the device."""

from collections.abc import Sequence
from contextlib import ExitStack

from surestep.engine.batch import Batch
from surestep.engine.state.state import State
from surestep.engine.step.part import Functions, Part
from surestep.engine.step.train_step import StepResult
from surestep.laws.check import Result, fail, hold
from surestep.laws.host_reads import find_reader, watch_reads
from surestep.laws.run import Recorded, Variant
from surestep.laws.runner import Runner
from surestep.trainer.session import Session

LAW, NAME = "law 6", "no stall"
_SHOWN = 3  # lines that a row names
_FIRST = 2  # step that is watched: in the first one, code may look up what it keeps


def check(runner: Runner) -> Result:
    """Watch the model, the loss and the optimizer in the steps after the first one."""
    (recorded,) = runner.train_all([Variant("watched reads", add_parts=_watch_steps)])
    lines = list(dict.fromkeys(recorded.notes))
    if not lines:
        return hold("the steps after the first one, without evaluations and loading")
    more = f", and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return fail(f"A step waits for the device: {'; '.join(lines[:_SHOWN])}{more}")


def _watch_steps(session: Session, recorded: Recorded) -> Sequence[Part]:
    """Note what reads the device within a step, by its line."""
    stack = ExitStack()

    def note(read: str) -> None:
        if line := find_reader():
            recorded.notes.append(f"{read} at {line}")

    def begin(state: State, batch: Batch) -> None:
        if state.progress.step + 1 >= _FIRST:
            stack.enter_context(watch_reads(note))

    def end(state: State, result: StepResult) -> None:
        stack.close()

    return [Functions("reads of the device", on_batch=begin, on_step=end)]
