"""The types of option values, and how their text is parsed."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from operator import index
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from surestep.base.paths import check_mirror_address
from surestep.config.byte_size import parse_bytes
from surestep.config.duration import (
    Unit,
    format_number,
    parse_duration,
    parse_number,
    parse_percent,
)

_LEAST_MEMORY = 10**6  # bytes


def _period(
    value: Any, units: tuple[Unit, ...], *, is_length: bool, shares: bool = True, zero: bool = False
) -> Any:
    """Parse an interval or a length, as the text of a Duration or of a share of the run, "10%".

    A bare number from 1 on is in steps; one below 1 is a fraction of an epoch, or of the run for a
    length. Anything but text and numbers is left to pydantic.
    """
    text = _as_text(value)
    if not isinstance(text, str):
        return value
    text = text.strip()
    if zero and text in ("0", "0 steps", "0 epochs", "0%"):
        return "0%"
    if shares and text.endswith("%"):
        percent = parse_percent(text)
        if percent is None or not 0 < percent <= 100:
            raise ValueError("must be a share of the run between 0% and 100%")
        return f"{format_number(percent)}%"
    number = _bare_number(text)
    if number is None:
        return str(parse_duration(text, units))
    if 0 < number < 1 and is_length:
        return f"{format_number(round(number * 100, 12))}%"
    if 0 < number < 1:
        return f"{format_number(number)} epochs"
    if not number.is_integer():
        raise ValueError(f"only whole numbers are steps. Use '{format_number(number)} epochs'")
    return str(parse_duration(f"{format_number(number)} steps", units))


def _as_text(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return str(value) if isinstance(value, bool) else format_number(float(value))
    return value


def _bare_number(text: str) -> float | None:
    """Parse a number without a unit; "10m" could be minutes."""
    return None if text.strip()[-1:] in ("m", "M") else parse_number(text)


def _time(value: Any) -> Any:
    """Parse a time such as "2 hours"; leave anything but text and numbers to pydantic."""
    text = _as_text(value)
    if not isinstance(text, str):
        return value
    if _bare_number(text) is not None:
        raise ValueError(
            f"it has no unit. Use '{text} seconds', '{text} minutes' or '{text} hours'"
        )
    return str(parse_duration(text, ("minutes",)))


def _memory_amount(value: Any) -> Any:
    """Check an amount of memory, such as "8GB"; leave anything but text and numbers to pydantic."""
    text = _as_text(value)
    if not isinstance(text, str):
        return value
    amount = parse_bytes(text)
    if amount is None:
        raise ValueError("must be an amount of memory with a unit, such as '8GB' or '512MiB'")
    if amount < _LEAST_MEMORY:
        raise ValueError("must be at least 1MB")
    return text.strip()


def _recomputed(text: str) -> str:
    words = text.split()
    is_count = len(words) == 2 and words[1].isdigit() and int(words[1]) > 0
    if not words or (words[0] == "every" and not is_count):
        raise ValueError("must be off, on, 'every 2' or names of modules")
    return " ".join(words)


def _block_choice(text: str) -> str:
    how, _, rest = " ".join(text.split()).partition(" ")
    is_valid = {
        "auto": not rest,
        "class": rest,
        "name": rest,
        "size": (parse_number(rest) or 0) >= 1,
    }
    if not is_valid.get(how):
        raise ValueError("must be auto, 'class Block', 'size 1e6' or 'name layers.*'")
    return f"{how} {rest}".strip()


def _milestones(value: Any) -> Any:
    """Return points in the run; integers without a unit could be steps or epochs."""
    points = [value] if isinstance(value, (str, int, float)) else list(value)
    bare = next((str(point) for point in points if str(point).strip().isdigit()), None)
    if bare is not None:
        raise ValueError(f"steps or epochs? Use '{bare} epochs', as in torch's examples, or steps")
    return tuple(points)


def _range(value: Any) -> str:
    """Parse the first and the last step: "10:15", "10-15" or (10, 15)."""
    text = ":".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    first, _, last = re.sub(r"\s*(:|-|,|to)\s*", ":", text.strip()).partition(":")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ValueError("must be the first and the last step, such as '10:15'")
    return f"{int(first)}:{int(last)}"


def _samples(value: Any) -> str | tuple[int, ...]:
    """Parse a file name, or sample indices; a single word that is not a number is a file name."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    items = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if len(items) == 1 and isinstance(items[0], str):
        if not re.fullmatch(r"[-\d\s,]+", items[0]):
            return items[0]
        items = items[0].split(",")
    try:
        samples = tuple(int(item) if isinstance(item, str) else index(item) for item in items)
    except (TypeError, ValueError):
        samples = ()
    if not samples or min(samples) < 0:
        raise ValueError("must be the name of one file, or indices from 0 on, such as [3, 17]")
    return samples


def _table(value: Any) -> str:
    """Read a JSON object from a dict, a file or text, and return it as text."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError("it must be a JSON object, or the name of a file with one")
    text = str(os.fspath(value))
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"the file cannot be read: {error.strerror}") from error
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it must be a JSON object: {error}") from error
    if not isinstance(table, dict):
        raise ValueError("it must be a JSON object, such as '{\"overlap_comm\": true}'")
    return json.dumps(table)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
DURATION = "a Duration in the Plan"


def _interval(*units: Unit, shares: bool = True) -> BeforeValidator:
    return BeforeValidator(partial(_period, units=units, is_length=False, shares=shares))


def _length(*, zero: bool = False) -> BeforeValidator:
    return BeforeValidator(partial(_period, units=("epochs", "steps"), is_length=True, zero=zero))


Period = Annotated[str, _interval("epochs", "steps", "items"), DURATION]
ClockPeriod = Annotated[str, _interval("epochs", "steps", "items", "minutes"), DURATION]
StepPeriod = Annotated[str, _interval("epochs", "steps", shares=False), DURATION]
Clock = Annotated[str, BeforeValidator(_time), DURATION]
Warmup = Annotated[str, _length(zero=True)]
Length = Annotated[str, _length()]
Milestones = Annotated[tuple[Length, ...], BeforeValidator(_milestones)]
Steps = Annotated[str, BeforeValidator(_range)]
SamplesOrFile = Annotated[str | tuple[int, ...], BeforeValidator(_samples)]
BlockChoice = Annotated[str, AfterValidator(_block_choice)]
TableOrFile = Annotated[str, BeforeValidator(_table)]
MirrorAddress = Annotated[str, BeforeValidator(lambda value: check_mirror_address(str(value)))]
MemoryAmount = Annotated[str, BeforeValidator(_memory_amount)]
Recomputed = Annotated[str, AfterValidator(_recomputed)]
