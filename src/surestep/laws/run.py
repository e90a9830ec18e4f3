"""One run of a program, recorded: its options, and what happens in it."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from surestep.base.errors import Preempted
from surestep.engine.step.callback import Request
from surestep.engine.step.part import Functions, Part
from surestep.engine.task.task import Task
from surestep.laws.files import protect_files
from surestep.laws.program import Program
from surestep.laws.record import Place, RunRecord, attach_recorder
from surestep.laws.trace import ModuleCall, find_line, trace_step
from surestep.trainer.fit import fit
from surestep.trainer.planning import TaskOrigin
from surestep.trainer.prepare import prepare
from surestep.trainer.session import Session


@dataclass(frozen=True)
class Variant:
    """How a run differs from the real one.

    Attributes:
        name: for people, such as "3 workers".
        options: over those of the config, by full name.
        calls_back: whether the callbacks of the program are called.
        add_parts: returns what acts in a session after its other parts; it may read what is
            recorded.
        use: entered around all of the run.
        change_task: returns the task that is trained.
        steps: that are recorded; None is those of the program.
        is_new_interpreter: it runs in one, and not in a fork; the rest is then pickled.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    calls_back: bool = True
    add_parts: "Callable[[Session, Recorded], Sequence[Part]] | None" = None
    use: Callable[[], AbstractContextManager[Any]] = nullcontext
    change_task: Callable[[Task], Task] | None = None
    steps: int | None = None
    is_new_interpreter: bool = False


@dataclass
class Recorded:
    """What a run computed.

    Attributes:
        record: of its steps.
        calls: of its modules, in the step that was asked for.
        sources: file and line of the custom code of the task, by what it computes.
        notes: what the parts of the variant found.
    """

    record: RunRecord
    calls: list[ModuleCall] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[Any] = field(default_factory=list)


def train(
    program: Program,
    options: Mapping[str, Any],
    variant: Variant,
    folder: Path,
    place: Place | None = None,
) -> Recorded:
    """Train a program from the start, or resume it; return what the steps computed.

    Args:
        program: what is trained.
        options: that all its runs have; see Facts.
        variant: of the run.
        folder: of the run; if it has one, this is resumed.
        place: of a tensor that is kept, and of the step whose modules are traced.
    """
    protect_files(program.began)
    with ExitStack() as stack:
        stack.enter_context(variant.use())
        task = program.build()
        if variant.change_task is not None:
            task = variant.change_task(task)
        options = {**options, **variant.options}
        config = program.config.replace_options(options, dict.fromkeys(options, "surestep prove"))
        callbacks = program.callbacks if variant.calls_back else ()
        origin = TaskOrigin()
        session = prepare(task, config, run=folder, callbacks=callbacks, origin=origin)
        stack.enter_context(session)
        calls = stack.enter_context(trace_step(session.loop, place.step)) if place else []
        recorder = stack.enter_context(attach_recorder(session.loop, keep=place))
        recorded = Recorded(recorder.record, calls, list_sources(task))
        parts = [] if variant.add_parts is None else variant.add_parts(session, recorded)
        steps = variant.steps or program.steps
        end = Functions("end of the compared steps", on_step=_pause_after(steps))
        session.loop.parts.attach([*session.loop.parts, *parts, end])
        with suppress(Preempted):
            fit(session)
        return recorded


def _pause_after(steps: int) -> Callable[..., Request | None]:
    return lambda state, result: Request.PAUSE if result.step >= steps else None


def list_sources(task: Task) -> dict[str, str]:
    """Return file and line of the custom code of a task, by the kind of value that it computes."""
    data: Any = task.train.dataset if isinstance(task.train, DataLoader) else task.train
    reads = (getattr(type(data), "__getitem__", None), getattr(type(data), "__iter__", None), data)
    loss = task.loss if callable(task.loss) else None
    codes = {
        "data": [task.collate_fn, task.inputs, *reads],
        "loss": [getattr(loss, "forward", None), loss],
        "outputs": [task.step],
    }
    lines = {kind: [find_line(code) for code in found if code] for kind, found in codes.items()}
    return {kind: next(filter(None, found), "") for kind, found in lines.items()}


def set_workers(task: Task, count: int) -> tuple[Task, dict[str, Any]]:
    """Return a task and the options with which its data are loaded by a number of workers."""
    loader = task.train
    if not isinstance(loader, DataLoader):
        return task, {"data.num_workers": count}
    loader = copy.copy(loader)
    is_kept = loader.persistent_workers and count > 0
    # A DataLoader allows no assignment to some of its attributes.
    vars(loader).update(
        num_workers=count, prefetch_factor=2 if count else None, persistent_workers=is_kept
    )
    return replace(task, train=loader), {}
