"""When to evaluate, and which metric decides what is best."""

from difflib import get_close_matches
from typing import Literal

from surestep.config.metric_direction import direction_of
from surestep.engine.metrics.base import find_object
from surestep.engine.plan.context import Decision, PlanContext, resolves
from surestep.engine.plan.fitting import AS_IN_TRAINING, FIT, FoundSize
from surestep.engine.plan.specs import raw_name


@resolves("validation.batch_size")
def batch_size(ctx: PlanContext) -> Decision:
    """Use the loader's size, or the one that fits in training."""
    wanted, of_loaders = ctx.get("validation.batch_size"), ctx.task_info.val_batch_sizes
    if ctx.task_info.batched:
        if wanted not in (None, 1):
            ctx.reject(
                f"validation.batch_size={wanted}, but the data comes in batches "
                "(Task(batched=True)), which are not split or joined. Leave it out."
            )
        return 1, "the data comes in batches (Task(batched=True))"
    if of_loaders:
        if any(wanted not in (None, size) for size in of_loaders):
            ctx.reject(
                f"validation.batch_size={wanted}, but the val DataLoader has "
                f"batch_size={of_loaders[0]}. Set it in one place."
            )
        return of_loaders[0], "the val DataLoader's own"
    if wanted == FIT:
        return _fitting_size(ctx)
    if ctx.task_info.no_data:
        return ctx.set_or(64, "no training data to take a size from")
    reason = "it fits in training, so it fits without gradients; no metric depends on it"
    if ctx.get("micro_batch_size") == FIT and not ctx.is_set("validation.batch_size"):
        if ctx["limit_val_batches"] is None:
            return _fitting_size(ctx)
        reason = "limit_val_batches counts batches, whose size must not depend on the memory"
        return min(64, ctx["batch_size"]), reason
    return ctx.set_or(ctx["micro_batch_size"], reason)


def _fitting_size(ctx: PlanContext) -> Decision:
    """Start with the size that is known to fit, or else with that of training."""
    if ctx["limit_val_batches"] is not None:
        ctx.reject(
            "validation.batch_size='fit' depends on the memory of the machine, and "
            f"limit_val_batches={ctx['limit_val_batches']} counts batches of that size. Set a "
            "number: validation.batch_size=64."
        )
    found = ctx.task_info.fitting_evaluation
    found = found or FoundSize(ctx["micro_batch_size"], AS_IN_TRAINING)
    return found.size, f"fit: {found.why}; halved when an evaluation runs out of memory"


@resolves("validation.weights")
def weights(ctx: PlanContext) -> Decision:
    """Evaluate the average if there is one."""
    averages = ctx["average.kind"] != "none"
    if ctx.get("validation.weights", "raw") != "raw" and not averages:
        ctx.reject(
            f"validation.weights={ctx.get('validation.weights')!r} needs an average. Set "
            "average.kind='ema' or 'swa'."
        )
    sets = ctx.task_info.val_sets
    if ctx.get("validation.weights") == "both" and any(raw_name(name) in sets for name in sets):
        ctx.reject(
            "validation.weights='both' reports the raw weights as "
            f"{', '.join(map(raw_name, sets))}, and a validation set has one of these names. "
            "Rename that set."
        )
    if averages:
        return ctx.set_or("average", "the purpose of average.kind")
    return ctx.set_or("raw", "there is no average")


@resolves("validation.metric")
def metric(ctx: PlanContext) -> Decision:
    """Use the loss, unless a metric that is measured is set."""
    task, wanted = ctx.task_info, ctx.get("validation.metric")
    if not task.val_sets:
        return None, "no validation data"
    names = ", ".join(measured_names(ctx))
    if wanted is None:
        if not task.evaluates_loss:
            instead = f"Set validation.metric to one of {names}."
            ctx.reject(
                "The model returns its losses in training alone, so validation has no loss. "
                + (instead if names else "Pass Task(metrics={...}) and set validation.metric.")
            )
        return f"{task.val_sets[0]}/loss", "the loss that is trained on"
    full = wanted if "/" in wanted else f"{task.val_sets[0]}/{wanted}"
    split, _, name = full.partition("/")
    if wanted.split("/")[-1] in task.tables:
        ctx.reject(
            f"validation.metric={wanted!r} is a table, which cannot be compared. Metrics that are "
            f"numbers: {names}."
        )
    elif full not in measured_names(ctx) and not (
        split in _measured_sets(ctx) and _metric_with_key(ctx, name)
    ):
        known = [name.rpartition("/")[2] for name in measured_names(ctx)]
        own = wanted.rpartition("/")[2].lower()
        last = own.rpartition("_")[2]  # of val_acc, as other libraries name it
        close = get_close_matches(own, known, n=1) or [
            name for name in known if name.lower().startswith(last) or last.startswith(name.lower())
        ]
        meant = f" Did you mean {close[0]!r}?" if close else ""
        meant += _hint_at_dicts(ctx, name, is_clear=bool(meant))
        ctx.reject(f"validation.metric={wanted!r} is not measured. Measured: {names}.{meant}")
    return full, f"set {ctx.origin('validation.metric')}"


def _hint_at_dicts(ctx: PlanContext, wanted: str, *, is_clear: bool) -> str:
    """Return how to name a value of a metric that returns a dict; "" if another name is meant."""
    objects = ctx.task_info.objects
    functions = [
        name
        for name in ctx.task_info.metrics
        if name not in objects and not find_object(name, (*objects, "loss"))
    ]
    known = [*objects, *functions]
    of = find_object(wanted, known)
    if of is None and known and not is_clear:
        of = known[0]
    if of is None:
        return ""
    wrap = "" if of in objects else f"pass metrics={{{of!r}: surestep.whole_set(function)}}; "
    return f" If {of!r} returns a dict, {wrap}its values are {of}_NAME each."


@resolves("validation.mode")
def mode(ctx: PlanContext) -> Decision:
    """Use the direction that the metric declares, or that its name implies."""
    best = better_direction(ctx)
    if best is None and not ctx.is_set("validation.mode"):
        ctx.reject(
            f"It is not known whether a larger {ctx['validation.metric']} is better. Set "
            "validation.mode='max' or 'min'."
        )
    if ctx["validation.metric"] is None:
        return ctx.set_or(best, "no validation data")
    side = "larger" if best == "max" else "smaller"
    return ctx.set_or(best, f"a {side} {ctx['validation.metric']} is better")


def measured_names(ctx: PlanContext) -> list[str]:
    """List what evaluations measure, as "set/metric"."""
    names = [*(["loss"] if ctx.task_info.evaluates_loss else []), *ctx.task_info.metrics]
    return [f"{split}/{name}" for split in _measured_sets(ctx) for name in names]


def _measured_sets(ctx: PlanContext) -> list[str]:
    """List the validation sets by the names under which they are reported."""
    sets = list(ctx.task_info.val_sets)
    both = ctx["validation.weights"] == "both"
    return [*sets, *map(raw_name, sets)] if both else sets


def _metric_with_key(ctx: PlanContext, name: str) -> str | None:
    """Return the metric whose compute returns a dict, if "metric_key" can be one of its values."""
    is_named = name in ctx.task_info.metrics
    return None if is_named else find_object(name, ctx.task_info.objects)


def better_direction(ctx: PlanContext) -> Literal["min", "max"] | None:
    """Return whether a smaller or a larger metric is better, if that is known."""
    name = (ctx["validation.metric"] or "loss").split("/")[-1]
    declared = ctx.task_info.metrics.get(_metric_with_key(ctx, name) or name)
    if declared is not None:
        return declared
    return direction_of(name)


@resolves("report.samples")
def report_samples(ctx: PlanContext) -> Decision:
    """Add why there is nothing to show, if that is known."""
    value, reason = ctx.declared()
    why = ctx.task_info.no_predictions() if value else ""
    return value, f"{reason}; not shown: {why}" if why else reason
