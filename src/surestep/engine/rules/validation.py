"""When to evaluate, and what follows from it."""

from surestep.config.duration import parse_duration
from surestep.engine.plan.plan import Constraint, PlanContext, Rule
from surestep.engine.plan.specs import raw_name
from surestep.engine.rules.helpers import (
    Refusals,
    Rows,
    always,
    default_value,
    how_often,
    is_set,
    require_whole_epochs,
    user_value,
    user_value_or,
)


def _has_average(k: PlanContext) -> bool:
    """Return whether the weights are averaged; the rows of the average are resolved later."""
    return bool(k.set_options.get("average.kind", "none") != "none")


ROWS: Rows = {
    "validation.every": how_often(
        "validation.every",
        off="evaluated at the end alone",
        usual="1 epoch",
        reason="once through the data",
    ),
    "validation.on_start": user_value_or(
        "validation.on_start", False, "the first evaluation is after validation.every"
    ),
    "validation.batch_size": (
        Rule(
            lambda k: bool(k.task_info.val_batch_sizes),
            lambda k: k.task_info.val_batch_sizes[0],
            "the val DataLoader's own",
        ),
        Rule(
            lambda k: k.task_info.batched,
            lambda _: 1,
            "the data comes in batches (Task(batched=True))",
        ),
        user_value("validation.batch_size"),
        Rule(lambda k: k.task_info.no_data, lambda _: 64, "no training data to take a size from"),
        Rule(
            always,
            lambda k: k["micro_batch_size"],
            "what fits in training fits without gradients; the numbers do not depend on it",
        ),
    ),
    "limit_val_batches": user_value_or("limit_val_batches", None, "not set: all of the data"),
    "validation.weights": (
        user_value("validation.weights"),
        Rule(
            _has_average,
            lambda _: "average",
            "it is what average.kind is set for",
        ),
        default_value("raw", "there is no average"),
    ),
    "validation.metric": (
        Rule(lambda k: not k.task_info.val_sets, lambda _: None, "no validation data"),
        Rule(is_set("validation.metric"), lambda k: k.metric(), "set {origin}"),
        Rule(always, lambda k: f"{k.task_info.val_sets[0]}/loss", "what is trained on"),
    ),
    "validation.mode": (
        user_value("validation.mode"),
        Rule(
            lambda k: k.metric_mode() == "max",
            lambda _: "max",
            "a larger {k[validation.metric]} is better",
        ),
        default_value("min", "a smaller {k[validation.metric]} is better"),
    ),
    "early_stop.patience": user_value_or("early_stop.patience", None, "not set: no early stopping"),
    "early_stop.start": (
        user_value("early_stop.start", parse_duration),
        default_value(None, "every evaluation counts"),
    ),
    "early_stop.min_delta": user_value_or("early_stop.min_delta", 0.0, "any gain counts"),
}

REFUSALS: Refusals = {
    "validation.every": (require_whole_epochs("validation.every"),),
    "validation.batch_size": (
        Constraint(
            lambda k: k.task_info.batched and k.set_options.get("validation.batch_size", 1) != 1,
            lambda k: (
                f"validation.batch_size={k.set_options['validation.batch_size']}, but the data "
                "comes in "
                "batches (Task(batched=True)), which are not cut or put together. Leave it out."
            ),
        ),
        Constraint(
            lambda k: any(
                size != k.set_options.get("validation.batch_size", size)
                for size in k.task_info.val_batch_sizes
            ),
            lambda k: (
                f"validation.batch_size={k.set_options['validation.batch_size']}, but the val "
                "DataLoader "
                f"has batch_size={k.task_info.val_batch_sizes[0]}. Say it in one place."
            ),
        ),
    ),
    "validation.weights": (
        Constraint(
            lambda k: (
                k.set_options.get("validation.weights", "raw") != "raw" and not _has_average(k)
            ),
            lambda k: (
                f"validation.weights={k.set_options['validation.weights']!r} needs an average. Set "
                "average.kind='ema' or 'swa'."
            ),
        ),
        Constraint(
            lambda k: (
                k.set_options.get("validation.weights") == "both"
                and any(raw_name(part) in k.task_info.val_sets for part in k.task_info.val_sets)
            ),
            lambda k: (
                "validation.weights='both' reports the raw weights as "
                f"{', '.join(map(raw_name, k.task_info.val_sets))}, and a validation set has one "
                "of "
                "these names. Rename that set."
            ),
        ),
    ),
    "validation.metric": (
        Constraint(
            lambda k: (
                bool(k.task_info.val_sets)
                and not k.task_info.evaluates_loss
                and "validation.metric" not in k.set_options
            ),
            lambda k: (
                "The model returns its losses in training alone, so validation has no loss. "
                + (
                    f"Set validation.metric to one of {', '.join(k.metric_names())}."
                    if k.task_info.metrics
                    else "Give Task(metrics={...}) and set validation.metric."
                )
            ),
        ),
        Constraint(
            lambda k: (
                "validation.metric" in k.set_options
                and str(k.set_options["validation.metric"]).split("/")[-1] in k.task_info.tables
            ),
            lambda k: (
                f"validation.metric={k.set_options['validation.metric']!r} is a table, and which "
                "of two "
                f"tables is better is not known. Numbers: {', '.join(k.metric_names())}."
            ),
        ),
        Constraint(
            lambda k: "validation.metric" in k.set_options and not k.is_measured(),
            lambda k: (
                f"validation.metric={k.set_options['validation.metric']!r} is not measured. "
                f"Measured: {', '.join(k.metric_names())}."
            ),
        ),
    ),
    "validation.mode": (
        Constraint(
            lambda k: k.metric_mode() is None and "validation.mode" not in k.set_options,
            lambda k: (
                f"Whether a larger {k['validation.metric']} is better is not known. "
                "Say validation.mode='max' or 'min'."
            ),
        ),
    ),
    "early_stop.patience": (
        Constraint(
            lambda k: k.is_on("early_stop.patience") and k.is_off("validation.every"),
            lambda k: (
                f"early_stop.patience={k.set_options['early_stop.patience']} counts evaluations, "
                "and "
                "validation.every is off. Set validation.every='1 epoch'."
            ),
        ),
    ),
    "early_stop.start": (require_whole_epochs("early_stop.start"),),
}
