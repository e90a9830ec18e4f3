"""state.json: what a checkpoint holds besides tensors, and what it says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from surestep.engine.value import Value
from surestep.record.checkpoint.errors import checkpoint_error
from surestep.record.checkpoint.manifest import RECORD, Manifest, check_sizes, read_manifest
from surestep.record.io import parse_json, read_regular
from surestep.record.run_schemas import PROGRESS
from surestep.record.schema import (
    Kind,
    anything,
    at_most,
    boolean,
    count,
    exact_object,
    finite,
    list_of,
    mapping_of,
    number,
    numbers,
    one_of,
    optional,
    positive,
    text,
)

_SCALER = exact_object(
    scale=at_most(positive, 2.0**127),
    growth_factor=positive,
    backoff_factor=positive,
    growth_interval=at_most(count, 2**31 - 1),
    _growth_tracker=at_most(count, 2**31 - 1),
)


def _scaler(value: Any, name: str) -> Any:
    return value if value == {} else _SCALER(value, name)  # {} where it is switched off


def _pair(value: Any, name: str) -> Any:
    if len(taken := list_of(count)(value, name)) != 2:
        raise ValueError(f"{name} has {len(taken)} numbers instead of 2")
    return taken


_OPTIMIZER = {
    "class": text,
    "values": mapping_of(anything),
    "groups": list_of(
        exact_object(names=list_of(text), options=mapping_of(anything), built=mapping_of(anything))
    ),
}


_RECORD: dict[str, Kind] = {
    "progress": PROGRESS,
    "counts": exact_object(
        overflow=count, nonfinite=count, no_items=count, clipped=count, after_spike=count
    ),
    "best": exact_object(
        metric=optional(text),
        best=optional(number),
        best_step=optional(count),
        since_best=count,
        latest_step=optional(count),
        latest=mapping_of(numbers),
        measured=one_of("weights", "average"),
        is_due=boolean,
    ),
    "plateau": exact_object(scale=number, best=optional(number), bad=count, cooling=count),
    "spikes": exact_object(losses=list_of(finite), skipped_steps=list_of(_pair), rollbacks=count),
    "cycle": optional(count),
    "scaler": _scaler,
    "metadata": mapping_of(anything),
    "aliases": mapping_of(text),
    "extra": mapping_of(anything),
    "base": mapping_of(text),
    "optimizers": mapping_of(exact_object(**_OPTIMIZER)),
    "callback_states": mapping_of(anything),
}


LARGEST = 2**40  # steps, epochs: at 1 us a step a run of so many takes 12 days


_OF_ENGINE = ("progress", "counts", "best", "plateau", "spikes", "cycle", "scaler")


_TAKE = exact_object(**_RECORD)


_TAKE_OF_ENGINE = exact_object(**{key: _RECORD[key] for key in _OF_ENGINE})


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
    progress, counts, best = record["progress"], record["counts"], record["best"]
    step, plateau = progress["step"], record["plateau"]
    _check(step <= LARGEST, f"progress.step is {step}, which is more than any run has")
    for name in ("steps_taken", "epoch"):
        _check_at_most(f"progress.{name}", progress[name], "progress.step", step)
    for name in ("position", "items"):
        _check(
            not progress[name] or step > 0,
            f"progress.{name} is {progress[name]} before the first step",
        )
    items = progress["items"]
    _check(0 <= items < 2.0**53, f"progress.items is {items}, which is no number of items")
    for name, steps in counts.items():
        _check_at_most(f"counts.{name}", steps, "any step", LARGEST)
    for name in ("best_step", "latest_step"):
        _check_at_most(f"best.{name}", best[name] or 0, "progress.step", step)
    evaluations = step + 1  # one before the first step, and one after each
    _check_at_most("best.since_best", best["since_best"], "evaluations", evaluations)
    _check_at_most("plateau.bad", plateau["bad"], "evaluations", evaluations)
    _check(0 <= plateau["scale"] <= 1, f"plateau.scale is {plateau['scale']}, not from 0 to 1")
    _check(plateau["cooling"] <= LARGEST, f"plateau.cooling is {plateau['cooling']}")
    _check((record["cycle"] or 0) <= LARGEST, f"cycle is {record['cycle']}")
    for first, last in record["spikes"]["skipped_steps"]:
        _check_at_most("the first step of spikes.skipped_steps", first, "its last", last)


def _check_at_most(name: str, value: int, most_name: str, most: int) -> None:
    _check(value <= most, f"{name} is {value}, and {most_name} is {most}")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint on disk: its step, the metrics measured at that very step, its folder.

    Attributes:
        measured: whose metrics they are: the weights', or their average's.
        cycle: the cycle of the schedule that ended there, from 1, where those are saved.
        best_step: the step that was the best until then.
    """

    step: int
    metrics: dict[str, Value]
    path: Path
    evaluated: Literal["weights", "average"] = "weights"
    cycle: int | None = None
    best_step: int | None = None

    @property
    def has_average(self) -> bool:
        """Whether it holds averaged weights beside the others."""
        return "average" in read_manifest(self.path).tensors


def read_record(path: Path, manifest: Manifest | None = None) -> dict[str, Any]:
    """Read what a checkpoint holds besides tensors, and its manifest where that was not yet.

    Raises:
        DamagedError: not what was written.
        CheckpointError: kept from us, or of another surestep's format.
    """
    manifest = manifest or read_manifest(path)
    check_sizes(path, manifest)
    try:
        data = read_regular(path / RECORD)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, RECORD, error) from error
    return parse_state_json(path, data, manifest.step)


def parse_state_json(path: Path, data: bytes, step: int) -> dict[str, Any]:
    """Return the record that these bytes of a checkpoint are.

    Raises:
        DamagedError: they are none, or one of another step.
    """
    try:
        record = as_record(parse_json(data))
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error
    if record["progress"]["step"] != step:
        raise checkpoint_error(
            path, RECORD, f"it is of step {record['progress']['step']}, not {step}"
        )
    try:
        check_numbers(record)
    except ValueError as error:
        raise checkpoint_error(path, RECORD, error) from error
    return record


def read_info(path: Path) -> CheckpointInfo:
    """Return step and metrics of a checkpoint.

    Raises:
        DamagedError: not what was written; its tensors are not looked at.
        CheckpointError: kept from us, or of another surestep's format.
    """
    return info_from_record(path, read_record(path))


def info_from_record(path: Path, record: Mapping[str, Any]) -> CheckpointInfo:
    """Return step and metrics of a checkpoint whose record was read."""
    standing, step = record["best"], record["progress"]["step"]
    return CheckpointInfo(
        step,
        standing["latest"] if standing["latest_step"] == step else {},
        path,
        standing["measured"],
        record["cycle"],
        standing["best_step"],
    )
