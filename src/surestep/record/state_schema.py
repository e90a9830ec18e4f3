"""The types of the values in the `state.json` of a checkpoint, and how it is checked."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from surestep.record.schemas import (
    LARGEST,
    PROGRESS,
    Count,
    Finite,
    Int32,
    Number,
    Numbers,
    Pair,
    Positive,
    Share,
    adapter,
    dict_of,
    exact,
    format_value,
    list_of,
    or_empty,
    validate,
)

_STATE = adapter(
    exact(
        progress=PROGRESS,
        counts=exact(
            overflow=Count, nonfinite=Count, no_items=Count, clipped=Count, after_spike=Count
        ),
        best=exact(
            metric=str | None,
            best=Number | None,
            best_step=Count | None,
            since_best=Count,
            latest_step=Count | None,
            latest=dict[str, Numbers],
            measured=Literal["weights", "average"],
            data=NotRequired[str | None],  # since format 7
            is_due=bool,
        ),
        plateau=exact(scale=Share, best=Number | None, bad=Count, cooling=Count),
        spikes=exact(losses=list[Finite], skipped_steps=list[Pair], rollbacks=Count),
        cycle=Count | None,
        scaler=or_empty(
            exact(
                scale=Positive,
                growth_factor=Positive,
                backoff_factor=Positive,
                growth_interval=Int32,
                _growth_tracker=Int32,
            )
        ),
        metadata=dict[str, Any],
        aliases=dict[str, str],
        extra=dict[str, Any],
        base=dict[str, str],
        empty=NotRequired[list[str]],  # since format 7
        requires_grad=NotRequired[dict[str, bool]],  # since format 7
        optimizers=dict_of[
            str,
            exact(
                **{"class": str},
                values=dict[str, Any],
                groups=list_of[exact(names=list[str], options=dict[str, Any])],
            ),
        ],
        callback_states=dict[str, Any],
    )
)


def parse_state(found: Any) -> dict[str, Any]:
    """Return the content of a checkpoint's `state.json`."""
    record = validate(_STATE, found)
    progress, best, step = record["progress"], record["best"], record["progress"]["step"]
    evaluations = step + 1  # one before the first step, and one after each
    at_most = {
        "progress.steps_taken": (progress["steps_taken"], step),
        "progress.epoch": (progress["epoch"], step),
        "progress.position": (progress["position"], LARGEST if step else 0),
        "progress.items": (progress["items"], 2.0**53 if step else 0),
        "best.best_step": (best["best_step"] or 0, step),
        "best.latest_step": (best["latest_step"] or 0, step),
        "best.since_best": (best["since_best"], evaluations),
        "plateau.bad": (record["plateau"]["bad"], evaluations),
    }
    for name, (value, most) in at_most.items():
        if not 0 <= value <= most:
            raise ValueError(f"{name} is {value}, and it can be at most {most} at step {step}")
    is_set, latest = best["best"] is not None, best["latest_step"]
    if is_set != (best["best_step"] is not None):
        raise ValueError("only one of best.best and best.best_step is null")
    if is_set and (latest is None or latest < best["best_step"]):
        raise ValueError(
            f"best.latest_step is {latest}, and best.best_step, an earlier evaluation, is "
            f"{best['best_step']}"
        )
    for first, last in record["spikes"]["skipped_steps"]:
        if first > last:
            raise ValueError(f"spikes.skipped_steps has a range from {first} to {last}")
    _check_best(best)
    return dict(record)


def check_counts(record: Mapping[str, Any]) -> None:
    """Check the counts of a `state.json` against its steps.

    Raises:
        ValueError: they cannot be those of a run.
    """
    progress, counts = record["progress"], record["counts"]
    step, taken = progress["step"], progress["steps_taken"]
    skipped = sum(counts[name] for name in ("overflow", "nonfinite", "no_items", "after_spike"))
    if skipped != step - taken:
        raise ValueError(
            f"counts has {skipped} skipped steps, and progress has {step} steps of which {taken} "
            "were taken"
        )
    if taken and not progress["items"]:
        raise ValueError(f"progress.items is 0 after {taken} steps that were taken")
    if counts["clipped"] > taken:
        raise ValueError(f"counts.clipped is {counts['clipped']}, and {taken} steps were taken")


def check_progress(progress: Mapping[str, Any], recorded: Sequence[Mapping[str, Any]]) -> None:
    """Check the progress of a `state.json` against what the events have of its step, if anything.

    Data whose length is not known ends an epoch after its last step was recorded.

    Raises:
        ValueError: it is none of these.
    """
    for known in recorded:
        ended = {**known, "epoch": known["epoch"] + 1, "position": 0}
        if progress in (known, ended):
            return
    for known in recorded[-1:]:
        name = next(name for name in known if progress[name] != known[name])
        raise ValueError(
            f"progress.{name} is {progress[name]}, and events.jsonl has {known[name]} after step "
            f"{known['step']}"
        )


def _check_best(best: dict[str, Any]) -> None:
    """Check the best metric, and if the latest evaluation has it, that both have one value."""
    if best["best"] is None:
        return
    if not math.isfinite(best["best"]):
        raise ValueError(f"best.best is {best['best']}, and the best is always finite")
    if best["latest_step"] != best["best_step"]:
        return
    if best["since_best"]:
        raise ValueError(f"best.since_best is {best['since_best']}, and the latest is the best")
    latest = best["latest"].get(best["metric"])
    if latest not in (None, best["best"]):
        raise ValueError(
            f"best.best is {best['best']}, and best.latest of that step has {best['metric']}: "
            f"{format_value(latest)}"
        )
