"""What the page of a study shows: its report, as reports/assets/search.js reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from surestep.base.text import format_count
from surestep.tuning.constraints import parse_constraint
from surestep.tuning.dimension import format_exact, label_choices
from surestep.tuning.space import Space
from surestep.tuning.table import EXACT, list_others, title_other

if TYPE_CHECKING:
    from surestep.tuning.dimension import Dimension

FILES = ("search.css", "plots.js", "search.js")
_SAME = (
    *("version", "study", "recipe", "objectives", "where", "counts", "evaluations", "seconds"),
    *("best", "winner", "importances", "importance_trials"),
)


def describe_page(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of the page of a study.

    Args:
        report: what `describe_study` returns.

    Returns:
        Parts of the report, and of each trial: its values in the order of the objectives, and by
        the key of each dimension that it has, its value or the index of its choice.
    """
    space = Space.from_json(report["space"])
    names = [one["name"] for one in report["objectives"]]
    constrained = [parse_constraint(text).name for text in report["where"]]
    others = list_others(names, constrained, [trial["measured"] for trial in report["trials"]])
    return {
        **{key: report[key] for key in _SAME},
        "settings": _describe_settings(report["settings"]),
        "bias": _explain_bias(report),
        "space": _describe_space(report, space),
        "parameters": [_describe_dimension(dimension) for dimension in space.dimensions],
        "others": [title_other(name, space) for name in others],
        "trials": [
            {
                **trial,
                "values": trial["values"] and list(trial["values"].values()),
                "measured": [trial["measured"].get(name) for name in others],
                "params": {
                    dimension.key: _place(dimension, trial["params"][dimension.name])
                    for dimension in space.active(trial["params"]).values()
                },
            }
            for trial in report["trials"]
        ],
    }


def _describe_settings(settings: Mapping[str, Any]) -> list[str]:
    parts = [
        format_count(settings["trials"], "trial"),
        f"sampler {settings['sampler']}",
        f"pruner {settings['pruner']}",
        f"seed {settings['seed']}",
    ]
    if settings["warm_start"] is not None:
        numbers, name = settings["warm_start"]["numbers"], settings["warm_start"]["name"]
        parts.append(f"{format_count(len(numbers), 'trial')} of {name} known")
    return parts


def _explain_bias(report: Mapping[str, Any]) -> str:
    if report["winner"] is not None and report["winner"]["confirmed"]:
        return "It has the best mean of the trials that were trained again with other seeds."
    finished = sum(
        trial["state"] == "finished" and trial["is_feasible"] and trial["same_as"] is None
        for trial in report["trials"]
    )
    name = report["objectives"][0]["name"]
    if finished == 1 or name in EXACT:
        return ""
    most = min(3, finished)
    return (
        f"The best of {finished} noisy values is probably better than what a new seed gives. "
        f"--confirm {most} trains the best {most} again with other seeds."
    )


def _describe_space(report: Mapping[str, Any], space: Space) -> list[tuple[str, str]]:
    """Return the names and values of what was searched, and of what was the same in all trials."""
    pairs = []
    for dimension in space.dimensions:
        needs = dimension.describe_conditions()
        values = " | ".join(label_choices(dimension)) or str(dimension.as_json())
        pairs.append((f"{dimension.name}, if {needs}" if needs else dimension.name, values))
    fixed = report["settings"]["fixed"]
    return pairs + [(name, f"{format_exact(value)} in all trials") for name, value in fixed.items()]


def _describe_dimension(dimension: Dimension) -> dict[str, Any]:
    choices = _order_choices(dimension)
    return {
        "key": dimension.key,
        "name": dimension.name,
        "is_log": dimension.kind in ("log", "logint"),
        "labels": choices if _is_numeric(choices) else label_choices(dimension),
    }


def _order_choices(dimension: Dimension) -> list[Any]:
    """Return the choices as plots show them: numbers in their order."""
    choices = dimension.choices
    return sorted(choices) if _is_numeric(choices) else list(choices)


def _is_numeric(choices: Sequence[Any]) -> bool:
    return all(type(choice) in (int, float) for choice in choices)


def _place(dimension: Dimension, value: Any) -> Any:
    """Return a value of a range, or the index of a choice."""
    return _order_choices(dimension).index(value) if dimension.kind == "choice" else value
