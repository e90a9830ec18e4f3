"""What the step of a task takes and calls, for the knobs that depend on it."""

from dataclasses import replace
from functools import partial

from surestep.engine.plan.plan import Plan
from surestep.engine.plan.specs import TracedStep
from surestep.trainer.memory import estimate_step
from surestep.trainer.planning import PreparedTask


def with_traced_step(planned: PreparedTask) -> PreparedTask:
    """Return it with a Plan whose `task_info.trace_step` traces the step, if a knob asks for it."""
    return planned.start_with(trace_step=partial(_trace, planned))


def _trace(planned: PreparedTask, plan: Plan) -> TracedStep:
    """Trace the step of a Plan of this task, with nothing on its device."""
    traced = estimate_step(replace(planned, plan=plan))
    return TracedStep() if traced.not_known else TracedStep(traced.peak, traced.attention)
