"""The average of the weights."""

from surestep.engine.plan.context import Decision, PlanContext, rule
from surestep.engine.plan.specs import AveragingSpec

_NO_AVERAGE = "there is no average"


@rule("average.start")
def start(ctx: PlanContext) -> Decision:
    """SWA averages the end of the run, EMA all of it."""
    if ctx["average.kind"] == "swa":
        return ctx.set_or("75%", "as in the paper (arxiv.org/abs/1803.05407)")
    return ctx.set_or("0%", "from the first step" if ctx["average.kind"] == "ema" else _NO_AVERAGE)


@rule("average.every")
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


@rule("average.buffers")
def buffers(ctx: PlanContext) -> Decision:
    """Recompute BatchNorm statistics for SWA, and average them for EMA."""
    kind, task = ctx["average.kind"], ctx.task_info
    first = _counted_from(ctx) + max(1, round(ctx.steps(ctx["average.every"])))
    if kind != "none" and first > ctx["total_steps"]:
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


@rule("average.lr")
def lr(ctx: PlanContext) -> Decision:
    """Check that the schedule is known before the run."""
    if ctx.is_set("average.lr") and ctx["schedule.name"] == "reduce_on_plateau":
        ctx.reject(
            f"average.lr={ctx.get('average.lr')} anneals from a learning rate that is known before "
            "the run, and that of reduce_on_plateau is not. Leave it out, or use "
            "schedule.name='cosine'."
        )
    return ctx.declared()


def _counted_from(ctx: PlanContext) -> int:
    """Return the step from which intervals are counted: whole epochs end where epochs end."""
    start, every = int(ctx.length_in_steps(ctx["average.start"])), ctx["average.every"]
    epoch = ctx["steps_per_epoch"]
    is_whole = every.unit == "epochs" and float(every.amount).is_integer()
    return start // epoch * epoch if is_whole and epoch else start


def make_averaging_spec(ctx: PlanContext) -> AveragingSpec:
    """Return the average that was decided."""
    anneal = 0 if ctx["average.lr"] is None else round(ctx.length_in_steps(ctx["average.anneal"]))
    return AveragingSpec(
        kind=ctx["average.kind"],
        decay=ctx["average.decay"],
        warmup=ctx["average.warmup"],
        start=int(ctx.length_in_steps(ctx["average.start"])),
        interval=max(1, round(ctx.steps(ctx["average.every"]))),
        buffers=ctx["average.buffers"],
        lr=ctx["average.lr"],
        anneal=anneal,
        counted_from=_counted_from(ctx),
    )
