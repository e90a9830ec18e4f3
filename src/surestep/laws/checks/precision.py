"""A planned precision is used, holds the schedule on a skipped step, and sums losses in fp32."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from surestep.engine.batch import flatten_tensors
from surestep.engine.state.state import State
from surestep.engine.step.part import Functions, Part
from surestep.engine.step.train_step import StepResult
from surestep.laws.check import Result, fail, hold, leave_out, leave_untested
from surestep.laws.checks.skipping import SKIPPED, STEP
from surestep.laws.record import Digest, RunRecord
from surestep.laws.run import Recorded, Variant
from surestep.laws.runner import Runner
from surestep.trainer.session import Session

LAW, NAME = "check", "precision"
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LOSSES = ("float32", "float64")


def check(runner: Runner) -> Result:
    """Record the dtypes of the first step, and the learning rate around a skipped one."""
    precision = runner.facts.precision
    dtype = _DTYPES.get(precision)
    if dtype is None:
        return leave_out(f"The planned precision is {precision}.")
    if runner.facts.optimizes_alone:
        return leave_out("The optimizer evaluates the batch by itself.")
    watched = Variant("watched dtypes", add_parts=_watch_dtypes, steps=1)
    dtypes, skipped = runner.train_all([watched, SKIPPED])
    returned: set[str] = dtypes.notes[0]
    name = str(dtype).removeprefix("torch.")
    if name not in returned:
        found = ", ".join(sorted(returned)) or "no tensor"
        return fail(f"The plan is {precision}, and the modules return {found}")
    if summed := find_sum(runner.base.record):
        return fail(f"Losses are summed in {summed}, which loses small terms")
    if not skipped.notes:
        return leave_untested("No gradient was there to put a NaN into.")
    if moved := find_advance(runner.base.record, skipped.record):
        return fail(f"The schedule advances on a skipped step: {moved}")
    return hold(f"{precision} is used, losses are sums in fp32, a skipped step holds the schedule")


def _watch_dtypes(session: Session, recorded: Recorded) -> Sequence[Part]:
    """Note the dtypes that modules return in the first step."""
    found: set[str] = set()
    recorded.notes.append(found)
    handles: list[Any] = []

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            found.update(map(_name_dtype, flatten_tensors(output)))

    def begin(state: State, batch: Any) -> None:
        handles.extend(one.register_forward_hook(note) for one in state.model.modules())

    def end(state: State, result: StepResult) -> None:
        while handles:
            handles.pop().remove()

    return [Functions("dtypes", on_batch=begin, on_step=end)]


def _name_dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def find_sum(record: RunRecord) -> str:
    """Return the dtype of a sum of losses that is not at least float32; "" if all are."""
    for _, values in record.steps:
        loss = values.get("loss", {}).get("sum over the items")
        if loss is not None and loss.dtype not in _LOSSES:
            return loss.dtype
    return ""


def find_advance(base: RunRecord, skipped: RunRecord) -> str:
    """Return how the learning rate after a skipped step differs from that of the step; "" if not.

    Args:
        base: of the run that took the step.
        skipped: of the run that skipped it.
    """
    wanted, found = _rates(base, STEP), _rates(skipped, STEP + 1)
    for name, rate in found.items():
        if name in wanted and wanted[name] != rate:
            return f"{name} is {rate.bits} in step {STEP + 1}, and {wanted[name].bits} was skipped"
    return ""


def _rates(record: RunRecord, step: int) -> dict[str, Digest]:
    return next((values.get("learning rate", {}) for n, values in record.steps if n == step), {})
