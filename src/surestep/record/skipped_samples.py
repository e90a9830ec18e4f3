"""The samples that a run skipped: `Run.skipped`, skipped.json, `--exclude-samples` reads it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.record.io import parse_json, read_regular, write_json
from surestep.record.schemas import MAX_INT, format_value

BLAMED = ("nonfinite", "spike")  # an overflow is the loss scale's doing, and no items is nobody's


@dataclass(frozen=True)
class SkippedSteps:
    """The steps of a run that moved nothing, and the samples in them.

    Attributes:
        steps: in order, each with step, epoch, positions, samples and reason.
    """

    steps: tuple[Mapping[str, Any], ...]

    @property
    def times(self) -> dict[int, int]:
        """How often each sample was in a batch that was not finite or a spike; most often first.

        Of a step whose guilty samples are known only those count; of others all samples, which
        come beside a bad one only by chance.
        """
        found = [each["samples"] or () for each in self.steps if each["reason"] in BLAMED]
        counts = Counter(sample for samples in found for sample in set(samples))
        return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))

    @property
    def samples(self) -> list[int]:
        """The indices of those samples, the most often skipped first."""
        return list(self.times)


def summarize_skips(events: Iterable[Mapping[str, Any]]) -> SkippedSteps:
    """Collect what was skipped; of steps that were taken again only the last time counts."""
    steps: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "skipped":
            kept = ("step", "epoch", "positions", "samples", "reason")
            steps[event["step"]] = {name: event[name] for name in kept}
        elif event["event"] in ("resume", "restart", "rollback"):
            steps = {step: each for step, each in steps.items() if step <= event["step"]}
    return SkippedSteps(tuple(steps[step] for step in sorted(steps)))


def write_skipped(path: Path, skipped: SkippedSteps) -> None:
    """Write what was skipped as a file that `read_samples` reads.

    Raises:
        RunError: the disk is full or cannot be written.
    """
    times = skipped.times
    content = {"samples": list(times), "times": list(times.values())}
    write_json(path, {**content, "steps": list(skipped.steps)})


def read_samples(path: Path) -> list[int]:
    """Read indices of samples: a run's skipped.json, a JSON list, or a number a line.

    Raises:
        ConfigError: it cannot be read, or something in it is no index.
    """
    try:
        data = read_regular(path.resolve())  # a link of the user's own is followed
        text = data.decode("utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        binary = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        reason = getattr(error, "strerror", None) or binary
        raise ConfigError(
            f"exclude_samples={str(path)!r} cannot be read: {reason}. Name a file such as a run's "
            "skipped.json, or say the indices: --exclude-samples 17 42 (exclude_samples=[17, 42])."
        ) from error
    try:
        found = parse_json(data) if text.lstrip().startswith(("{", "[")) else text.split()
    except ValueError as error:
        raise ConfigError(f"exclude_samples={str(path)!r} is no JSON: {error}.") from error
    found = found.get("samples") if isinstance(found, dict) else found
    if not isinstance(found, list):
        raise ConfigError(
            f"exclude_samples={str(path)!r} has no list of samples. Give a run's skipped.json, a "
            "JSON "
            "list of indices, or a number a line."
        )
    bad = next((each for each in found if not _is_index(each)), None)
    if bad is not None:
        raise ConfigError(
            f"exclude_samples={str(path)!r} holds {format_value(bad)}, which is no index of a "
            "sample."
        )
    if not found:
        raise ConfigError(
            f"exclude_samples={str(path)!r} names no sample. Leave exclude_samples out."
        )
    return list(map(int, found))


def _is_index(value: Any) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and len(value) < len(str(MAX_INT))
    return type(value) is int and 0 <= value <= MAX_INT
