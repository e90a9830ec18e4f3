"""The average of the weights."""

from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.plan.specs import AveragingSpec
from surestep.engine.rules.rule import rule

_NO_AVERAGE = "there is no average"


@rule("average.decay")
def decay(k: PlanContext) -> Decision:
    """EMA has one."""
    if k["average.kind"] == "ema":
        return k.set_or(0.999, "a memory of about 1,000 updates")
    return k.set_or(None, "only EMA has one")


@rule("average.warmup")
def warmup(k: PlanContext) -> Decision:
    """EMA has one."""
    if k["average.kind"] == "ema":
        return k.set_or(True, "a young average is not mostly the initial weights")
    return k.set_or(None, "only EMA has one")


@rule("average.start")
def start(k: PlanContext) -> Decision:
    """SWA averages the end of the run, EMA all of it."""
    if k["average.kind"] == "swa":
        return k.set_or("75%", "as in the paper (arxiv.org/abs/1803.05407)")
    return k.set_or("0%", "from the first step" if k["average.kind"] == "ema" else _NO_AVERAGE)


@rule("average.every")
def every(k: PlanContext) -> Decision:
    """SWA averages epochs, if there are several."""
    if k["average.kind"] != "swa":
        return k.set_or("1 step", "at each step")
    if k["steps_per_epoch"] is None:
        return k.set_or("1 step", "the number of steps of an epoch is not known")
    left = k["total_steps"] - k.length_in_steps(k["average.start"])
    if left < k["steps_per_epoch"]:
        return k.set_or("1 step", "less than an epoch is averaged")
    return k.set_or("1 epoch", "as in the paper")


@rule("average.buffers")
def buffers(k: PlanContext) -> Decision:
    """Recompute BatchNorm statistics for SWA, and average them for EMA."""
    kind, task = k["average.kind"], k.task_info
    first = k.length_in_steps(k["average.start"]) + max(1, round(k.steps(k["average.every"])))
    if kind != "none" and int(first) > k["total_steps"]:
        k.reject(
            f"average.start={k['average.start']!r} and average.every='{k['average.every']}' leave "
            f"the average empty in a run of {k['total_steps']} steps. Use an earlier start, a "
            "smaller every, or a longer run."
        )
    if k.get("average.buffers") == "recompute" and not task.batch_norm:
        k.reject(
            "average.buffers='recompute' recomputes BatchNorm statistics, and the model has no "
            "BatchNorm. Leave it out."
        )
    elif k.get("average.buffers") == "recompute" and not task.called:
        k.reject(
            "average.buffers='recompute' calls the model with each batch, and the Task's own step "
            "calls parts of it. Use 'average', or Task(loss=...) if the model has a forward."
        )
    if kind == "swa" and task.batch_norm and task.called:
        reason = "BatchNorm has not seen the averaged weights: one pass over the training data"
        return k.set_or("recompute", reason)
    if kind == "swa" and task.batch_norm:
        return k.set_or("average", "the model cannot be called to recompute BatchNorm statistics")
    if kind == "ema":
        return k.set_or("average", "running statistics follow the weights")
    return k.set_or("copy", "the model's own")


@rule("average.lr")
def lr(k: PlanContext) -> Decision:
    """Check that the schedule is known before the run."""
    if k.is_set("average.lr") and k["schedule.name"] == "reduce_on_plateau":
        k.reject(
            f"average.lr={k.get('average.lr')} anneals from a learning rate that is known before "
            "the run, and that of reduce_on_plateau is not. Leave it out, or use "
            "schedule.name='cosine'."
        )
    return k.declared()


@rule("average.anneal")
def anneal(k: PlanContext) -> Decision:
    """Anneal to average.lr."""
    if k.is_set("average.lr"):
        return k.set_or("5%", "so that the learning rate does not jump")
    return k.set_or("0%", "there is no average.lr to anneal to")


def make_averaging_spec(k: PlanContext) -> AveragingSpec:
    """Return the average that was decided."""
    return AveragingSpec(
        kind=k["average.kind"],
        decay=k["average.decay"],
        warmup=k["average.warmup"],
        start=int(k.length_in_steps(k["average.start"])),
        interval=max(1, round(k.steps(k["average.every"]))),
        buffers=k["average.buffers"],
        lr=k["average.lr"],
        anneal=round(k.length_in_steps(k["average.anneal"])),
    )
