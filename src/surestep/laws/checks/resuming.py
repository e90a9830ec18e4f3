"""A run that is killed and resumed computes the bits of one that is not."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from surestep.engine.data.stream_state import STREAM
from surestep.engine.state.state import State
from surestep.engine.step.part import Functions, Part
from surestep.engine.step.train_step import StepResult
from surestep.laws.check import Result, fail, hold, leave_untested
from surestep.laws.compare import Difference, compare_records
from surestep.laws.processes import send_before_kill
from surestep.laws.record import Place, RunRecord, StepRecord
from surestep.laws.run import Recorded, Variant
from surestep.laws.runner import (
    Finding,
    Runner,
    drop_names,
    get_value,
    make_finding,
    start_at,
)
from surestep.record.checkpoint.encoding import CALLBACK_STATES
from surestep.trainer.session import Session

LAW, NAME = "law 2", "resuming"
_OPTIONS = {"checkpoint.every": "1 step"}
_EVALUATED = {"validation.every": "2 steps"}


@dataclass(frozen=True)
class Kill:
    """When a process of a run kills itself, by signal 9."""

    moment: Literal["step", "evaluation", "save"]
    step: int

    def add_parts(self, session: Session, recorded: Recorded) -> Sequence[Part]:
        """Return what kills the process of a session, and writes before what it has recorded."""
        kill = partial(self._kill, session, recorded)
        if self.moment == "save":
            _call_before_rename(f"{session.run.checkpoints}/step-{self.step:08d}", kill)
            return ()
        if self.moment == "evaluation":
            return [Functions("kill", on_eval_batch=lambda state: kill(state.progress.step))]

        def kill_after(state: State, result: StepResult) -> None:
            if result.step == self.step:
                session.saving.wait()
                kill()

        return [Functions("kill", on_between=kill_after)]

    def _kill(self, session: Session, recorded: Recorded, step: int | None = None) -> None:
        if step not in (None, self.step):
            return
        record = recorded.record
        steps = [step for step in record.steps if step.step <= self.step]  # the next may be taken
        whole = replace(recorded, record=RunRecord(steps, record.place, record.kept))
        send_before_kill(whole)
        os.kill(os.getpid(), signal.SIGKILL)


def _call_before_rename(path: str, function: Callable[[], None]) -> None:
    """Call a function before a save gives a checkpoint its name, which makes it complete."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(arguments[1]) == path:
            function()

    sys.addaudithook(audit)


@dataclass(frozen=True)
class Chain:
    """A run in several processes: all except the last are killed.

    Attributes:
        name: for people.
        kills: of each process.
        changes: options of the last process.
    """

    name: str
    kills: tuple[Kill, ...]
    changes: tuple[tuple[str, Any], ...] = ()


def list_chains(steps: int, epoch: int, *, evaluates: bool, loads_in_workers: bool) -> list[Chain]:
    """Return the runs that are killed.

    Args:
        steps: of a run.
        epoch: steps of an epoch.
        evaluates: the run has evaluations, after each second step.
        loads_in_workers: the number of workers may change.
    """
    twice = (Kill("step", 1), Kill("save", epoch + 2))
    workers = (("data.num_workers", 2),) if loads_in_workers else ()
    other = ", then resumed with 2 workers" if workers else ""
    chains = [
        Chain("killed after step 1 and in a save", twice),
        Chain(f"killed at the end of an epoch{other}", (Kill("step", epoch),), workers),
    ]
    if evaluates:
        in_evaluation = (Kill("evaluation", 4), Kill("step", 5))
        chains.append(Chain("killed in an evaluation, and one step later", in_evaluation))
    kept = [
        replace(chain, kills=tuple(kill for kill in chain.kills if kill.step < steps))
        for chain in chains
    ]
    return [chain for chain in kept if chain.kills]


def check(runner: Runner) -> Result:
    """Kill runs at several moments, resume each in a new process, and compare."""
    facts = runner.facts
    evaluates = facts.has_validation and not facts.on_plateau
    options = {**_OPTIONS, **(_EVALUATED if evaluates else {})}
    reference = Variant("checkpoints", options)
    chains = list_chains(
        runner.program.steps,
        facts.steps_per_epoch,
        evaluates=evaluates,
        loads_in_workers=facts.loads_in_workers,
    )
    whole = runner.train(reference)
    for chain in chains:
        processes = _train_chain(runner, chain, options)
        if isinstance(processes, str):
            return leave_untested(processes)
        for number, process in enumerate(processes):
            difference = _compare(whole, process)
            if difference is not None:
                repeat = partial(_train_chain, runner, chain, options, difference.place)
                finding = _explain(runner, difference, reference, repeat, number)
                return fail(f"The run that was {chain.name} is a different one", finding)
    return hold("; ".join(chain.name for chain in chains))


def _train_chain(
    runner: Runner, chain: Chain, options: dict[str, Any], place: Place | None = None
) -> list[Recorded] | str:
    """Train a run whose processes are killed; return what each has recorded.

    If a process was not killed, or the next one did not resume, return a sentence about it.
    """
    folder = runner.make_folder()
    folder.mkdir()
    found: list[Recorded] = []
    for number, kill in enumerate((*chain.kills, None)):
        variant = Variant(f"a kill ({chain.name})", options)
        if kill is None:
            variant = replace(variant, options={**options, **dict(chain.changes)})
        else:
            variant = replace(variant, add_parts=kill.add_parts)
        (outcome,) = runner.call(runner.make_call(variant, place, run=folder / "run"))
        if kill is None:
            found.append(get_value(outcome, variant.name))
        elif outcome.signal == signal.SIGKILL and outcome.value is not None:
            found.append(outcome.value)
        else:
            get_value(outcome, variant.name)
            return f"No {kill.moment} was reached at step {kill.step}, so no kill hit one."
        steps = found[-1].record.steps
        if number and not (steps and steps[0].step):
            return f"The run that was {chain.name} began at step 0 again: it had no checkpoint."
    return found


def _compare(whole: Recorded, process: Recorded) -> Difference | None:
    """Return the first difference of a run and of one of the processes of a resumed one."""
    first, last = process.record.steps[0].step, process.record.steps[-1].step
    known, own = start_at(whole.record, first), start_at(process.record, first)
    known.steps = [step for step in known.steps if step.step <= last]
    if first:
        pairs = zip(known.steps, own.steps, strict=False)
        common = [keep_common_gradients(one, other) for one, other in pairs]
        known.steps[: len(common)] = [one for one, _ in common]
        own.steps[: len(common)] = [other for _, other in common]
    # The state of a stream counts what this process has read; later data show whether it is right.
    stream = f"{CALLBACK_STATES}.{STREAM}."
    return compare_records(drop_names(known, stream), drop_names(own, stream))


def keep_common_gradients(one: StepRecord, other: StepRecord) -> tuple[StepRecord, StepRecord]:
    """Return two steps with the gradients that both have.

    In a manual step, a backward pass of one model leaves the gradients of another one as an earlier
    step has left them. A process that resumes has none from before. A gradient that is used changes
    parameters, which are compared.
    """
    kind = "gradients"
    gradients = [step.values.get(kind, {}) for step in (one, other)]
    names = gradients[0].keys() & gradients[1].keys()
    first, second = (
        StepRecord(step, {**values, kind: {name: named[name] for name in named if name in names}})
        for (step, values), named in zip((one, other), gradients, strict=True)
    )
    return first, second


def _explain(
    runner: Runner,
    difference: Difference,
    reference: Variant,
    repeat: Callable[[], list[Recorded] | str],
    number: int,
) -> Finding:
    """Train both runs again, and find the module or line that differs in one of the processes."""
    whole, processes = runner.train(reference, difference.place), repeat()
    if isinstance(processes, str):
        return make_finding(difference, whole, whole)
    again = _compare(whole, processes[number])
    return make_finding(again or difference, whole, processes[number])
