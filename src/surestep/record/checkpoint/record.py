"""What a checkpoint holds besides tensors: every key that state.json has, and its kind."""

from typing import Any

from surestep.record.kinds import (
    Kind,
    anything,
    boolean,
    count,
    finite,
    listed,
    named,
    number,
    numbers,
    one_of,
    optional,
    parts,
    positive,
    text,
    within,
)
from surestep.record.run_files import PLACE

_SCALER = parts(
    scale=within(positive, 2.0**127),
    growth_factor=positive,
    backoff_factor=positive,
    growth_interval=within(count, 2**31 - 1),
    _growth_tracker=within(count, 2**31 - 1),
)


def _scaler(value: Any, name: str) -> Any:
    return value if value == {} else _SCALER(value, name)  # {} where it is switched off


def _pair(value: Any, name: str) -> Any:
    if len(taken := listed(count)(value, name)) != 2:
        raise ValueError(f"{name} has {len(taken)} numbers instead of 2")
    return taken


_OPTIMIZER = {
    "class": text,
    "values": named(anything),
    "groups": listed(parts(names=listed(text), options=named(anything), built=named(anything))),
}
_RECORD: dict[str, Kind] = {
    "place": PLACE,
    "counts": parts(overflow=count, nonfinite=count, no_items=count, clipped=count, left_out=count),
    "standing": parts(
        metric=optional(text),
        best=optional(number),
        best_step=optional(count),
        since_best=count,
        latest_step=optional(count),
        latest=named(numbers),
        measured=one_of("weights", "average"),
        is_due=boolean,
    ),
    "plateau": parts(scale=number, best=optional(number), bad=count, cooling=count),
    "spikes": parts(losses=listed(finite), left_out=listed(_pair), rollbacks=count),
    "cycle": optional(count),
    "scaler": _scaler,
    "metadata": named(anything),
    "aliases": named(text),
    "extra": named(anything),
    "base": named(text),
    "optimizers": named(parts(**_OPTIMIZER)),
    "declared": named(anything),
}
_OF_ENGINE = ("place", "counts", "standing", "plateau", "spikes", "cycle", "scaler")
_TAKE = parts(**_RECORD)
_TAKE_OF_ENGINE = parts(**{key: _RECORD[key] for key in _OF_ENGINE})


def as_record(found: Any) -> dict[str, Any]:
    """Return a record in which each value is of its kind.

    Raises:
        ValueError: with the name of what is not.
    """
    return dict(_TAKE(found, "it"))


def as_numbers(found: Any) -> dict[str, Any]:
    """Return what the engine itself keeps of a record, each value of its kind.

    Raises:
        ValueError: with the name of what is not.
    """
    return dict(_TAKE_OF_ENGINE(found, "it"))
