"""A schedule of Accelerate is as many times too long as batches are accumulated.

A schedule that `accelerator.prepare` wraps moves with the optimizer: once for each update, and not
for each micro-batch. If its length is the number of updates times the number of accumulated
batches, training ends early in the schedule. Nothing fails: the warmup takes too long, and the
learning rate never decays.

Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization

Wrong:

    import torch
    from accelerate import Accelerator
    from transformers import get_scheduler


    def build(model, updates, accumulation_steps):
        accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps)
        optimizer = torch.optim.AdamW(model.parameters())
        steps = updates * accumulation_steps
        schedule = get_scheduler("linear", optimizer, 0, num_training_steps=steps)
        return accelerator.prepare(model, optimizer, schedule)

Right:

    import torch
    from accelerate import Accelerator
    from transformers import get_scheduler


    def build(model, updates, accumulation_steps):
        accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps)
        optimizer = torch.optim.AdamW(model.parameters())
        steps = updates * accelerator.num_processes
        schedule = get_scheduler("linear", optimizer, 0, num_training_steps=steps)
        return accelerator.prepare(model, optimizer, schedule)
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe, is_scheduler
from surestep.doctor.source.values import Call, Operation, Value, last_name

SEVERITY = "warning"
FIX = "Pass the number of updates, times accelerator.num_processes."
_ACCELERATE = re.compile(r"\baccelerator\b")
_STEPS_PER_BATCH = re.compile(r"(adjust_scheduler|step_scheduler_with_optimizer)\s*=\s*False")


def check(program: Program) -> Iterator[Problem]:
    """Find lengths of schedules that are multiplied by a number of accumulated batches."""
    if not program.contains(_ACCELERATE) or program.contains(_STEPS_PER_BATCH):
        return
    for trace in program.traces:
        for event, call in trace.calls:
            steps = call.argument(-1, "num_training_steps")
            factor = None if steps is None else _find_accumulation(steps)
            is_schedule = is_scheduler(call) or "num_warmup_steps" in call.keywords
            if factor is not None and is_schedule:
                yield at_event(
                    event,
                    f"The schedule has `{describe(factor)}` times as many steps as the updates "
                    "that move it.",
                    assumed="" if _is_prepared(trace, call) else "accelerator.prepare wraps it.",
                )


def _find_accumulation(steps: Value) -> Value | None:
    """Return the factor of a product that is a number of accumulated batches."""
    if not isinstance(steps, Operation) or steps.operator != "*":
        return None
    for operand in steps.operands:
        if "accum" in last_name(operand).lower():
            return operand
        inner = _find_accumulation(operand)
        if inner is not None:
            return inner
    return None


def _is_prepared(trace: Trace, schedule: Call) -> bool:
    return any(call.name == "prepare" and schedule in call.arguments for _, call in trace.calls)
