"""What a checkpoint holds besides tensors: every key that state.json has, and its kind."""

from collections.abc import Mapping
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
LARGEST = 2**40  # steps, epochs: at 1 us a step a run of so many takes 12 days
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


def check_numbers(record: Mapping[str, Any]) -> None:
    """Check that the numbers of a record can be of one run.

    Hashes tell of damage, not of somebody who has computed them again. A run that believed such
    numbers would end at once, or train on other data by another schedule.

    Raises:
        ValueError: with the names of two that cannot both be so.
    """
    place, counts, standing = record["place"], record["counts"], record["standing"]
    step, plateau = place["step"], record["plateau"]
    _check(step <= LARGEST, f"place.step is {step}, which is more than any run has")
    for name in ("steps_taken", "epoch"):
        _check_at_most(f"place.{name}", place[name], "place.step", step)
    for name in ("position", "items"):
        _check(not place[name] or step > 0, f"place.{name} is {place[name]} before the first step")
    items = place["items"]
    _check(0 <= items < 2.0**53, f"place.items is {items}, which is no number of items")
    for name, steps in counts.items():
        _check_at_most(f"counts.{name}", steps, "any step", LARGEST)
    for name in ("best_step", "latest_step"):
        _check_at_most(f"standing.{name}", standing[name] or 0, "place.step", step)
    evaluations = step + 1  # one before the first step, and one after each
    _check_at_most("standing.since_best", standing["since_best"], "evaluations", evaluations)
    _check_at_most("plateau.bad", plateau["bad"], "evaluations", evaluations)
    _check(0 <= plateau["scale"] <= 1, f"plateau.scale is {plateau['scale']}, not from 0 to 1")
    _check(plateau["cooling"] <= LARGEST, f"plateau.cooling is {plateau['cooling']}")
    _check((record["cycle"] or 0) <= LARGEST, f"cycle is {record['cycle']}")
    for first, last in record["spikes"]["left_out"]:
        _check_at_most("the first step of spikes.left_out", first, "its last", last)


def _check_at_most(name: str, value: int, most_name: str, most: int) -> None:
    _check(value <= most, f"{name} is {value}, and {most_name} is {most}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
