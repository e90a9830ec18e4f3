"""The samples that a run skipped: `Run.skipped`, and skipped.json for `--exclude-samples`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surestep.base.errors import ConfigError
from surestep.record.io import parse_json, read_regular, write_json
from surestep.record.schemas import MAX_INT, UNDOING, format_value

BLAMED = ("nonfinite", "spike")  # not an overflow of the loss scale, nor a step without items


@dataclass(frozen=True)
class SkippedSteps:
    """The skipped steps of a run, and their samples.

    Attributes:
        steps: in order, each with step, epoch, positions, samples and reason.
    """

    steps: tuple[Mapping[str, Any], ...]

    @property
    def times(self) -> dict[int, int]:
        """How often each sample was in a step with NaN, infinity or a spike; most often first.

        Of a step whose causes were found, only those samples count; otherwise all samples do.
        """
        skipped = [step["samples"] or () for step in self.steps if step["reason"] in BLAMED]
        counts = Counter(sample for samples in skipped for sample in set(samples))
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    @property
    def samples(self) -> list[int]:
        """The indices of those samples, the most often skipped first."""
        return list(self.times)


def summarize_skips(events: Iterable[Mapping[str, Any]]) -> SkippedSteps:
    """Collect the skipped steps; of steps that were repeated, only the last time counts."""
    steps: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "skipped":
            names = ("step", "epoch", "positions", "samples", "reason")
            steps[event["step"]] = {name: event[name] for name in names}
        elif event["event"] in UNDOING:
            steps = {step: skip for step, skip in steps.items() if step <= event["step"]}
    return SkippedSteps(tuple(steps[step] for step in sorted(steps)))


def write_skipped(path: Path, skipped: SkippedSteps) -> None:
    """Write a file that `read_samples` reads."""
    times = skipped.times
    content = {"samples": list(times), "times": list(times.values())}
    write_json(path, {**content, "steps": list(skipped.steps)})


def read_samples(path: Path) -> list[int]:
    """Read indices of samples: a run's skipped.json, a JSON list, or a number a line.

    Raises:
        ConfigError: it cannot be read, or has something that is not an index.
    """
    option = f"exclude_samples={str(path)!r}"
    try:
        data = read_regular(path.resolve())  # follows a link of the user
        text = data.decode("utf-8")
        found = parse_json(data) if text.lstrip().startswith(("{", "[")) else text.split()
    except (OSError, ValueError, RuntimeError) as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else error
        raise ConfigError(
            f"{option} cannot be read: {getattr(error, 'strerror', None) or reason}. Name a file "
            "such as a run's skipped.json, or pass the indices: --exclude-samples 17 42 "
            "(exclude_samples=[17, 42])."
        ) from error
    found = found.get("samples") if isinstance(found, dict) else found
    if not isinstance(found, list):
        raise ConfigError(
            f"{option} has no list of samples. Use a run's skipped.json, a JSON list of indices, "
            "or a number a line."
        )
    bad = next((value for value in found if not _is_index(value)), None)
    if bad is not None:
        raise ConfigError(f"{option} has {format_value(bad)}, which is not an index of a sample.")
    if not found:
        raise ConfigError(f"{option} names no sample. Leave exclude_samples out.")
    return list(map(int, found))


def _is_index(value: Any) -> bool:
    if isinstance(value, str):
        return value.isdecimal() and len(value) < len(str(MAX_INT))
    return type(value) is int and 0 <= value <= MAX_INT
