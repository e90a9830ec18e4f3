"""When to evaluate, and what follows from it."""

from surestep.base.duration import parse_duration
from surestep.engine.average import raw_name
from surestep.engine.plan import Known, Refusal, Row
from surestep.engine.table.rows import (
    Refusals,
    Rows,
    always,
    default,
    how_often,
    is_said,
    plain,
    refuse_part_of_epoch,
    said,
)


def _refuse_without_val(option: str) -> Refusal:
    return Refusal(
        lambda k: k.is_on(option) and not k.given.val_sets,
        lambda k: f"{option}={k.said[option]!r} needs evaluations: give the Task val data.",
    )


def _has_average(k: Known) -> bool:
    """Return whether the weights are averaged; the rows of the average are resolved later."""
    return bool(k.said.get("average.kind", "none") != "none")


ROWS: Rows = {
    "validation.every": how_often(
        "validation.every",
        off="evaluated at the end alone",
        usual="1 epoch",
        reason="once through the data",
    ),
    "validation.on_start": plain(
        "validation.on_start", False, "the first evaluation is after validation.every"
    ),
    "validation.batch_size": (
        Row(
            lambda k: bool(k.given.val_batch_sizes),
            lambda k: k.given.val_batch_sizes[0],
            "the val DataLoader's own",
        ),
        Row(
            lambda k: k.given.batched,
            lambda _: 1,
            "the data comes in batches (Task(batched=True))",
        ),
        said("validation.batch_size"),
        Row(lambda k: k.given.no_data, lambda _: 64, "no training data to take a size from"),
        Row(
            always,
            lambda k: k["micro_batch_size"],
            "what fits in training fits without gradients; the numbers do not depend on it",
        ),
    ),
    "limit_val_batches": plain("limit_val_batches", None, "nothing set: all of the data"),
    "validation.weights": (
        said("validation.weights"),
        Row(
            _has_average,
            lambda _: "average",
            "it is what average.kind is set for",
        ),
        default("raw", "there is no average"),
    ),
    "validation.metric": (
        Row(lambda k: not k.given.val_sets, lambda _: None, "no validation data"),
        Row(is_said("validation.metric"), lambda k: k.metric(), "said: {origin}"),
        Row(always, lambda k: f"{k.given.val_sets[0]}/loss", "what is trained on"),
    ),
    "validation.mode": (
        said("validation.mode"),
        Row(
            lambda k: k.metric_mode() == "max",
            lambda _: "max",
            "a larger {k[validation.metric]} is better",
        ),
        default("min", "a smaller {k[validation.metric]} is better"),
    ),
    "early_stop.patience": plain("early_stop.patience", None, "nothing said: no early stopping"),
    "early_stop.start": (
        said("early_stop.start", parse_duration),
        default(None, "every evaluation counts"),
    ),
    "early_stop.min_delta": plain("early_stop.min_delta", 0.0, "any gain counts"),
}

REFUSALS: Refusals = {
    "validation.every": (
        _refuse_without_val("validation.every"),
        refuse_part_of_epoch("validation.every"),
    ),
    "validation.on_start": (_refuse_without_val("validation.on_start"),),
    "limit_val_batches": (_refuse_without_val("limit_val_batches"),),
    "validation.batch_size": (
        _refuse_without_val("validation.batch_size"),
        Refusal(
            lambda k: k.given.batched and k.said.get("validation.batch_size", 1) != 1,
            lambda k: (
                f"validation.batch_size={k.said['validation.batch_size']}, but the data comes in "
                "batches (Task(batched=True)), which are not cut or put together. Leave it out."
            ),
        ),
        Refusal(
            lambda k: any(
                size != k.said.get("validation.batch_size", size)
                for size in k.given.val_batch_sizes
            ),
            lambda k: (
                f"validation.batch_size={k.said['validation.batch_size']}, but the val DataLoader "
                f"has batch_size={k.given.val_batch_sizes[0]}. Say it in one place."
            ),
        ),
    ),
    "validation.weights": (
        _refuse_without_val("validation.weights"),
        Refusal(
            lambda k: k.said.get("validation.weights", "raw") != "raw" and not _has_average(k),
            lambda k: (
                f"validation.weights={k.said['validation.weights']!r} needs an average. Set "
                "average.kind='ema' or 'swa'."
            ),
        ),
        Refusal(
            lambda k: (
                k.said.get("validation.weights") == "both"
                and any(raw_name(part) in k.given.val_sets for part in k.given.val_sets)
            ),
            lambda k: (
                "validation.weights='both' reports the raw weights as "
                f"{', '.join(map(raw_name, k.given.val_sets))}, and a validation set has one of "
                "these names. Rename that set."
            ),
        ),
    ),
    "validation.metric": (
        Refusal(
            lambda k: (
                bool(k.given.val_sets)
                and not k.given.evaluates_loss
                and "validation.metric" not in k.said
            ),
            lambda k: (
                "The model returns its losses in training alone, so validation has no loss. "
                + (
                    f"Set validation.metric to one of {', '.join(k.metric_names())}."
                    if k.given.metrics
                    else "Give Task(metrics={...}) and set validation.metric."
                )
            ),
        ),
        Refusal(
            lambda k: (
                "validation.metric" in k.said
                and str(k.said["validation.metric"]).split("/")[-1] in k.given.tables
            ),
            lambda k: (
                f"validation.metric={k.said['validation.metric']!r} is a table, and which of two "
                f"tables is better is not known. Numbers: {', '.join(k.metric_names())}."
            ),
        ),
        Refusal(
            lambda k: (
                "validation.metric" in k.said and (not k.given.val_sets or not k.is_measured())
            ),
            lambda k: (
                f"validation.metric={k.said['validation.metric']!r} is not measured. "
                f"Measured: {', '.join(k.metric_names()) or 'nothing, there is no val data'}."
            ),
        ),
    ),
    "validation.mode": (
        _refuse_without_val("validation.mode"),
        Refusal(
            lambda k: k.metric_mode() is None and "validation.mode" not in k.said,
            lambda k: (
                f"Whether a larger {k['validation.metric']} is better is not known. "
                "Say validation.mode='max' or 'min'."
            ),
        ),
    ),
    "early_stop.patience": (
        Refusal(
            lambda k: k.is_on("early_stop.patience") and not k.given.val_sets,
            lambda k: "early_stop.patience needs evaluations: give the Task val data.",
        ),
        Refusal(
            lambda k: k.is_on("early_stop.patience") and k.is_off("validation.every"),
            lambda k: (
                f"early_stop.patience={k.said['early_stop.patience']} counts evaluations, and "
                "validation.every is off. Set validation.every='1 epoch'."
            ),
        ),
    ),
    "early_stop.start": (
        Refusal(
            lambda k: "early_stop.start" in k.said and k["early_stop.patience"] is None,
            lambda k: "early_stop.start needs a patience: set early_stop.patience=5.",
        ),
        refuse_part_of_epoch("early_stop.start"),
    ),
    "early_stop.min_delta": (
        Refusal(
            lambda k: "early_stop.min_delta" in k.said and k["early_stop.patience"] is None,
            lambda k: "early_stop.min_delta needs a patience: say early_stop.patience=5.",
        ),
    ),
}
