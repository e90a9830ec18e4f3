"""The JSON files of a run folder that are read again: the kind of each of their values.

What a version added later may be missing, and what nobody reads may be anything.
"""

from typing import Any

from surestep.record.schema import (
    Kind,
    anything,
    boolean,
    count,
    exact_object,
    list_of,
    mapping_of,
    number,
    one_of,
    open_object,
    optional,
    pair,
    text,
    version,
)

CONFIG_FORMAT = 3
INCIDENT_FORMAT = 2
PROGRESS = exact_object(step=count, steps_taken=count, epoch=count, position=count, items=number)


def _recipe(value: Any, name: str) -> Any:
    """Take what a recipe is known by; {} where the run was started from Python."""
    return value if value == {} else _RECIPE(value, name)


_RECIPE = open_object({"name": text, "path": text, "sha256": text})
_OPTIONS = open_object({}, {"epochs": optional(number), "max_steps": optional(count)})
CONFIG = open_object(
    {"recipe": _recipe, "task": mapping_of(anything), "config": _OPTIONS},
    {
        "format": version(CONFIG_FORMAT),
        "code": mapping_of(text),
        "decided": open_object({}, {"total_steps": optional(count)}),
        "data": open_object({}, {"exclude_samples": list_of(count)}),
        "machine": mapping_of(anything),
        "modules": mapping_of(mapping_of(anything)),
        "from": optional(open_object({"run": text, "which": text, "step": count})),
    },
)

_COUNTS = ("step", "epoch", "steps_taken", "overflow", "nonfinite", "no_items")
_FIGURES: dict[str, Kind] = {
    **dict.fromkeys(_COUNTS, count),
    **dict.fromkeys(("items", "seconds", "data_wait_s"), number),
    "clipped": optional(count),
    "reason": text,
}
_JUDGED = optional(pair(text, one_of("min", "max")))
_FINDING = open_object(dict.fromkeys(("rule", "severity", "message", "fix"), text))
_MAY: dict[str, Kind] = {"monitor": _JUDGED, "findings": list_of(_FINDING)}
_STANDS = open_object({"status": text}, {**_MAY, **_FIGURES})
_FINISHED = open_object({"status": text, **_FIGURES}, _MAY)


def status(value: Any, name: str) -> dict[str, Any]:
    """Take how a run stands; one that is finished has its figures."""
    found: dict[str, Any] = _STANDS(value, name)
    if found["status"] == "finished":
        found = _FINISHED(value, name)
    return found


_DECISION = open_object({"option": text, "value": anything})
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


PLAN = list_of(_decision)
_FLAGGED = open_object({"position": count, "index": optional(count)})
_DIAGNOSIS = open_object(
    {
        "cause": optional(
            open_object(dict.fromkeys(("module", "operation", "name"), optional(text)))
        ),
        "samples": open_object({"samples": list_of(_FLAGGED)}),
    },
    {"outputs": optional(text)},
)
_MICRO_BATCH = open_object(
    {
        **dict.fromkeys(("args", "kwargs", "targets"), mapping_of(anything)),
        "items": number,
        "samples": count,
        "position": count,
        "part_items": list_of(number),
    }
)
INCIDENT = open_object(
    {
        "format": version(INCIDENT_FORMAT),
        "step": count,
        "checkpoint": text,
        "run_config": CONFIG,
        "progress": PROGRESS,
        "is_manual": boolean,
        "loss": optional(number),
        "grad_norm": optional(number),
        "norms": list_of(pair(text, number)),
        "text": text,
        "diagnosis": optional(_DIAGNOSIS),
        "batch": optional(list_of(_MICRO_BATCH)),
        "not_saved": list_of(text),
        "bytes": count,
        "sha256": text,
    }
)
