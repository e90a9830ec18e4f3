"""The average of the weights."""

from dataclasses import replace
from typing import Literal

from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.plan.specs import AveragingSpec

_NO_AVERAGE = "there is no average"


@resolves("average.start")
def start(ctx: PlanContext) -> Decision:
    """SWA averages the end of the run, EMA all of it."""
    if ctx["average.kind"] == "swa":
        return ctx.set_or("75%", "as in the paper (arxiv.org/abs/1803.05407)")
    return ctx.set_or("0%", "from the first step" if ctx["average.kind"] == "ema" else _NO_AVERAGE)


@resolves("average.every")
def every(ctx: PlanContext) -> Decision:
    """SWA averages epochs, if there are several."""
    if ctx["average.kind"] != "swa":
        return ctx.set_or("1 step", "at each step")
    if ctx["steps_per_epoch"] is None:
        return ctx.set_or("1 step", "the number of steps of an epoch is not known")
    left = ctx["total_steps"] - ctx.length_in_steps(ctx["average.start"])
    if left < ctx["steps_per_epoch"]:
        return ctx.set_or("1 step", "less than an epoch is averaged")
    return ctx.set_or("1 epoch", "as in the paper")


@resolves("average.buffers")
def buffers(ctx: PlanContext) -> Decision:
    """Recompute BatchNorm statistics for SWA, and average them for EMA."""
    kind, task = ctx["average.kind"], ctx.task_info
    if kind != "none" and not _spec(ctx, "copy").count_updates(ctx["total_steps"]):
        ctx.reject(
            f"average.start={ctx['average.start']!r} and average.every='{ctx['average.every']}' "
            f"leave the average empty in a run of {ctx['total_steps']} steps. Use an earlier "
            "start, a smaller every, or a longer run."
        )
    if ctx.get("average.buffers") == "recompute" and not task.batch_norm:
        ctx.reject(
            "average.buffers='recompute' recomputes BatchNorm statistics, and the model has no "
            "BatchNorm. Leave it out."
        )
    elif ctx.get("average.buffers") == "recompute" and not task.called:
        ctx.reject(
            "average.buffers='recompute' calls the model with each batch, and the Task's own step "
            "calls parts of it. Use 'average', or Task(loss=...) if the model has a forward."
        )
    if kind == "swa" and task.batch_norm and task.called:
        reason = "BatchNorm has not seen the averaged weights: one pass over the training data"
        return ctx.set_or("recompute", reason)
    if kind == "swa" and task.batch_norm:
        return ctx.set_or("average", "the model cannot be called to recompute BatchNorm statistics")
    if kind == "ema":
        return ctx.set_or("average", "running statistics follow the weights")
    return ctx.set_or("copy", "the model's own")


@resolves("average.lr")
def lr(ctx: PlanContext) -> Decision:
    """Check that the schedule is known before the run."""
    if ctx.is_set("average.lr") and ctx["schedule.name"] == "reduce_on_plateau":
        ctx.reject(
            f"average.lr={ctx.get('average.lr')} anneals from a learning rate that is known before "
            "the run, and that of reduce_on_plateau is not. Leave it out, or use "
            "schedule.name='cosine'."
        )
    return ctx.declared()


def make_averaging_spec(ctx: PlanContext) -> AveragingSpec:
    """Return the average that was decided."""
    lr, anneal = ctx["average.lr"], 0
    if lr is not None:
        anneal = round(ctx.length_in_steps(ctx["average.anneal"]))
    return replace(_spec(ctx, ctx["average.buffers"]), lr=lr, anneal=anneal)


def _spec(ctx: PlanContext, buffers: Literal["copy", "average", "recompute"]) -> AveragingSpec:
    """Return the average without its learning rate; intervals in epochs begin with epochs."""
    start, every = int(ctx.length_in_steps(ctx["average.start"])), ctx["average.every"]
    epoch = ctx["steps_per_epoch"] if every.unit == "epochs" else None
    return AveragingSpec(
        kind=ctx["average.kind"],
        decay=ctx["average.decay"],
        warmup=ctx["average.warmup"],
        start=start,
        interval=max(1.0, ctx.steps(every)),
        buffers=buffers,
        lr=None,
        anneal=0,
        counted_from=start // epoch * epoch if epoch else start,
        by_epochs=epoch is not None,
    )
