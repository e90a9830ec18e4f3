"""A step that is skipped changes nothing, and the next step is that of a run without it."""

import math
from collections.abc import Sequence
from typing import Any

from surestep.engine.state.state import State, trainable_parameters
from surestep.engine.step.part import Functions, Part
from surestep.laws.check import Result, fail, hold, leave_out, leave_untested
from surestep.laws.compare import compare_records
from surestep.laws.record import KINDS, Place, RunRecord, StepRecord
from surestep.laws.run import Recorded, Variant
from surestep.laws.runner import Runner, drop_names, filter_record, make_finding, start_at
from surestep.trainer.session import Session

LAW, NAME = "law 5", "skipping"
STEP = 2  # that is skipped: there is a state before it, and 10 steps have more after it
_OPTIONS = {"on_nonfinite": "skip"}


def _add_nan(session: Session, recorded: Recorded) -> Sequence[Part]:
    """Put a NaN into a gradient of one step."""

    def change(state: State) -> None:
        if state.progress.step + 1 == STEP:
            for parameter in trainable_parameters(state.model).values():
                if parameter.grad is not None:
                    parameter.grad.view(-1)[0] = math.nan
                    recorded.notes.append("changed")
                    return

    return [Functions("NaN", on_backward=change)]


def _leave_out_batch(session: Session, recorded: Recorded) -> Sequence[Part]:
    """Leave out the batch of the step; no forward sees it."""
    session.state.spikes.skipped_steps.append((STEP, STEP))
    return ()


SKIPPED = Variant("a NaN in a gradient", _OPTIONS, add_parts=_add_nan)
_WITHOUT = Variant("a batch that is left out", _OPTIONS, add_parts=_leave_out_batch)


def check(runner: Runner) -> Result:
    """Put a NaN into the gradient of one step, and compare with a run without this step."""
    if runner.facts.optimizes_alone:
        return leave_out("The optimizer evaluates the batch by itself.")
    skipped, without = runner.train_all([SKIPPED, _WITHOUT])
    if not skipped.notes:
        return leave_untested("No gradient was there to put a NaN into.")
    if difference := compare_records(*_take_states(skipped.record)):
        (again,) = runner.train_all([SKIPPED], [difference.place])
        return fail("The skipped step changed something", make_finding(difference, again, again))
    difference = compare_records(_select(without.record), _select(skipped.record))
    if difference is None:
        return hold(f"a NaN in step {STEP}, compared with a run without this step")
    place: Place = difference.place
    one, other = runner.train_all([_WITHOUT, SKIPPED], [place, place])
    again_found = compare_records(_select(one.record), _select(other.record))
    finding = make_finding(again_found or difference, one, other)
    return fail(f"After the skipped step {STEP}, the run is not the one without it", finding)


def _take_states(record: RunRecord) -> tuple[RunRecord, RunRecord]:
    """Return the states before and after the skipped step, as records of the same step."""
    by_step: dict[int, dict[str, Any]] = dict(record.steps)
    kinds = [kind for kind in KINDS if kind in ("parameters", "buffers", "optimizer state")]
    states = [
        RunRecord([StepRecord(STEP, {kind: by_step[step].get(kind, {}) for kind in kinds})])
        for step in (STEP - 1, STEP)
    ]
    return states[0], states[1]


def _select(record: RunRecord) -> RunRecord:
    """Return what must be equal: all except the samples and items, which the batch has none of."""
    kept = filter_record(start_at(record, STEP), lambda kind, name: kind != "sample indices")
    # fp16 counts the steps since an overflow, which a NaN is for it.
    return drop_names(kept, "progress.items", "best.", "scaler._growth_tracker")
