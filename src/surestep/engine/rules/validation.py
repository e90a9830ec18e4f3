"""When to evaluate, and which metric decides what is best."""

from typing import Literal

from surestep.engine.plan.context import Decision, PlanContext
from surestep.engine.plan.specs import raw_name
from surestep.engine.rules.rule import rule

LARGER_IS_BETTER = frozenset(
    ("accuracy", "auroc", "auc", "f1", "precision", "recall", "iou", "dice", "map", "bleu", "r2")
)
SMALLER_IS_BETTER = frozenset(("loss", "error", "mse", "mae", "rmse", "perplexity", "wer", "cer"))


@rule("validation.batch_size")
def batch_size(k: PlanContext) -> Decision:
    """Use the loader's size, or the one that fits in training."""
    wanted, of_loaders = k.get("validation.batch_size"), k.task_info.val_batch_sizes
    if k.task_info.batched:
        if wanted not in (None, 1):
            k.reject(
                f"validation.batch_size={wanted}, but the data comes in batches "
                "(Task(batched=True)), which are not split or joined. Leave it out."
            )
        return 1, "the data comes in batches (Task(batched=True))"
    if of_loaders:
        if any(wanted not in (None, size) for size in of_loaders):
            k.reject(
                f"validation.batch_size={wanted}, but the val DataLoader has "
                f"batch_size={of_loaders[0]}. Set it in one place."
            )
        return of_loaders[0], "the val DataLoader's own"
    if k.task_info.no_data:
        return k.set_or(64, "no training data to take a size from")
    reason = "what fits in training fits without gradients; the numbers do not depend on it"
    return k.set_or(k["micro_batch_size"], reason)


@rule("validation.weights")
def weights(k: PlanContext) -> Decision:
    """Evaluate the average if there is one."""
    averages = k["average.kind"] != "none"
    if k.get("validation.weights", "raw") != "raw" and not averages:
        k.reject(
            f"validation.weights={k.get('validation.weights')!r} needs an average. Set "
            "average.kind='ema' or 'swa'."
        )
    sets = k.task_info.val_sets
    if k.get("validation.weights") == "both" and any(raw_name(each) in sets for each in sets):
        k.reject(
            "validation.weights='both' reports the raw weights as "
            f"{', '.join(map(raw_name, sets))}, and a validation set has one of these names. "
            "Rename that set."
        )
    if averages:
        return k.set_or("average", "the purpose of average.kind")
    return k.set_or("raw", "there is no average")


@rule("validation.metric")
def metric(k: PlanContext) -> Decision:
    """Use the loss, unless a metric that is measured is set."""
    task, wanted = k.task_info, k.get("validation.metric")
    if not task.val_sets:
        return None, "no validation data"
    names = ", ".join(measured_names(k))
    if wanted is None:
        if not task.evaluates_loss:
            instead = f"Set validation.metric to one of {names}."
            k.reject(
                "The model returns its losses in training alone, so validation has no loss. "
                + (instead if names else "Pass Task(metrics={...}) and set validation.metric.")
            )
        return f"{task.val_sets[0]}/loss", "what is trained on"
    full = wanted if "/" in wanted else f"{task.val_sets[0]}/{wanted}"
    split, _, name = full.partition("/")
    if wanted.split("/")[-1] in task.tables:
        k.reject(
            f"validation.metric={wanted!r} is a table, which cannot be compared. Metrics that are "
            f"numbers: {names}."
        )
    elif full not in measured_names(k) and not (
        split in task.val_sets and _metric_with_key(k, name)
    ):
        k.reject(f"validation.metric={wanted!r} is not measured. Measured: {names}.")
    return full, f"set {k.origin('validation.metric')}"


@rule("validation.mode")
def mode(k: PlanContext) -> Decision:
    """Use the direction that the metric declares, or that its name implies."""
    best = better_direction(k)
    if best is None and not k.is_set("validation.mode"):
        k.reject(
            f"It is not known whether a larger {k['validation.metric']} is better. Set "
            "validation.mode='max' or 'min'."
        )
    side = "larger" if best == "max" else "smaller"
    return k.set_or(best, f"a {side} {k['validation.metric']} is better")


@rule("early_stop.patience")
def patience(k: PlanContext) -> Decision:
    """Check that there are evaluations to count."""
    if k.get("early_stop.patience") is not None and k.is_off("validation.every"):
        k.reject(
            f"early_stop.patience={k.get('early_stop.patience')} counts evaluations, and "
            "validation.every is off. Set validation.every='1 epoch'."
        )
    return k.declared()


def measured_names(k: PlanContext) -> list[str]:
    """List what evaluations measure, as "set/metric"."""
    names = [*(["loss"] if k.task_info.evaluates_loss else []), *k.task_info.metrics]
    sets = list(k.task_info.val_sets)
    if k["validation.weights"] == "both":
        sets += [raw_name(each) for each in k.task_info.val_sets]
    return [f"{each}/{name}" for each in sets for name in names]


def _metric_with_key(k: PlanContext, name: str) -> str | None:
    """Return the metric whose compute returns a dict, if "metric_key" can be one of its values."""
    prefixes = (each for each in k.task_info.objects if name.startswith(f"{each}_"))
    return None if name in k.task_info.metrics else max(prefixes, key=len, default=None)


def better_direction(k: PlanContext) -> Literal["min", "max"] | None:
    """Return whether a smaller or a larger metric is better, if that is known."""
    name = (k["validation.metric"] or "loss").split("/")[-1]
    declared = k.task_info.metrics.get(_metric_with_key(k, name) or name)
    if declared is not None:
        return declared
    return "max" if name in LARGER_IS_BETTER else "min" if name in SMALLER_IS_BETTER else None
