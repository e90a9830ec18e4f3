"""The JSON files of a run folder that are read again: the kind of each of their values.

What a version added later may be missing, and what nobody reads may be anything.
"""

from typing import Any

from surestep.record.kinds import (
    Kind,
    anything,
    boolean,
    count,
    holding,
    listed,
    named,
    number,
    one_of,
    optional,
    pair,
    parts,
    text,
    version,
)

CONFIG_FORMAT = 2  # an option that is null was switched off; format 1 wrote none
INCIDENT_FORMAT = 1
PLACE = parts(step=count, steps_taken=count, epoch=count, position=count, items=number)


def _recipe(value: Any, name: str) -> Any:
    """Take what a recipe is known by; {} where the run was started from Python."""
    return value if value == {} else _RECIPE(value, name)


_RECIPE = holding({"name": text, "path": text, "sha256": text})
_OPTIONS = holding({}, {"epochs": optional(number), "max_steps": optional(count)})
CONFIG = holding(
    {"recipe": _recipe, "task": named(anything), "config": _OPTIONS},
    {
        "format": version(CONFIG_FORMAT),
        "code": named(text),
        "decided": holding({}, {"total_steps": optional(count)}),
        "data": holding({}, {"skip_samples": listed(count)}),
        "machine": named(anything),
        "modules": named(named(anything)),
        "from": optional(holding({"run": text, "which": text, "step": count})),
    },
)

_COUNTS = ("step", "epoch", "steps_taken", "overflow", "nonfinite", "no_items")
_FIGURES: dict[str, Kind] = {
    **dict.fromkeys(_COUNTS, count),
    **dict.fromkeys(("items", "seconds", "waited_s"), number),
    "clipped": optional(count),
    "reason": text,
}
_JUDGED = optional(pair(text, one_of("min", "max")))
_FINDING = holding(dict.fromkeys(("rule", "severity", "message", "fix"), text))
_MAY: dict[str, Kind] = {"judged_by": _JUDGED, "findings": listed(_FINDING)}
_STANDS = holding({"status": text}, {**_MAY, **_FIGURES})
_FINISHED = holding({"status": text, **_FIGURES}, _MAY)


def status(value: Any, name: str) -> dict[str, Any]:
    """Take how a run stands; one that is finished has its figures."""
    found: dict[str, Any] = _STANDS(value, name)
    if found["status"] == "finished":
        found = _FINISHED(value, name)
    return found


_DECISION = holding({"option": text, "value": anything})
_DECIDED: dict[str, Kind] = {  # those that are read again
    "checkpoint.keep_last": count,
    "checkpoint.keep_best": count,
    "checkpoint.keep_every": optional(text),
    "steps_per_epoch": optional(count),
    "batch_size": optional(count),
}


def _decision(value: Any, name: str) -> dict[str, Any]:
    """Take a decision of a Plan."""
    found: dict[str, Any] = _DECISION(value, name)
    _DECIDED.get(found["option"], anything)(found["value"], f"{name}.value")
    return found


PLAN = listed(_decision)
_FLAGGED = holding({"position": count, "index": optional(count)})
_DIAGNOSIS = holding(
    {
        "cause": optional(holding(dict.fromkeys(("module", "operation", "name"), optional(text)))),
        "samples": holding({"samples": listed(_FLAGGED)}),
    },
    {"outputs": optional(text)},
)
_MICRO_BATCH = holding(
    {
        **dict.fromkeys(("args", "kwargs", "targets"), named(anything)),
        "items": number,
        "samples": count,
        "position": count,
        "part_items": listed(number),
    }
)
INCIDENT = holding(
    {
        "format": version(INCIDENT_FORMAT),
        "step": count,
        "checkpoint": text,
        "asked": CONFIG,
        "place": PLACE,
        "is_own": boolean,
        "loss": optional(number),
        "grad_norm": optional(number),
        "norms": listed(pair(text, number)),
        "text": text,
        "diagnosis": optional(_DIAGNOSIS),
        "batch": optional(listed(_MICRO_BATCH)),
        "not_kept": listed(text),
        "bytes": count,
        "sha256": text,
    }
)
