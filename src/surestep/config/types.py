"""The types of option values, and how their text is parsed."""

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from surestep.config.duration import Unit, format_number, parse_duration

_BARE = re.compile(r"\s*([0-9._]+(?:e[+-]?[0-9]+)?)\s*(k?)\s*", re.IGNORECASE)


def _text(value: Any) -> Any:
    """Convert a number to text, in steps if it has no unit; leave anything else to pydantic."""
    if isinstance(value, (int, float)):
        value = str(value) if isinstance(value, bool) else format_number(float(value))
    number = _bare_number(value) if isinstance(value, str) else None
    if number is None:
        return value
    if number > 1 and not number.is_integer():
        raise ValueError(f"only whole numbers are steps. Use '{format_number(number)} epochs'")
    return f"{format_number(number)} steps" if number >= 1 else format_number(number)


def _bare_number(text: str) -> float | None:
    """Parse a number without a unit; None if the text is not a finite number."""
    match = _BARE.fullmatch(text)
    try:
        number = float(match[1]) * (1000 if match[2] else 1) if match else math.inf
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _read_share(text: str) -> float | None:
    """Parse "10%", or a number below 1; None if the text is something else."""
    word = text.strip()
    try:
        share = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        return -1.0 if word.endswith("%") else None
    return share if word.endswith("%") or 0 < share < 1 else None


def _interval(*units: Unit, shares: bool) -> AfterValidator:
    """Parse an interval; "0.25" is a fraction of an epoch, and "25%" may be a share of the run."""

    def read(text: str) -> str:
        share, is_percent = _read_share(text), text.strip().endswith("%")
        if share is None or (is_percent and not shares):
            return str(parse_duration(text, units))
        return _percent(text) if is_percent else f"{format_number(share)} epochs"

    return AfterValidator(read)


def _length(*, at_least_zero: bool) -> AfterValidator:
    """Parse a length in steps or epochs, or a share of the run: "10%" or 0.1."""

    def read(text: str) -> str:
        if at_least_zero and text.strip() in ("0", "0 steps", "0 epochs", "0%"):
            return "0%"
        if _read_share(text) is None:
            return str(parse_duration(text, ("steps", "epochs")))
        return _percent(text)

    return AfterValidator(read)


def _percent(text: str) -> str:
    """Return a share of the run as it is stored: "10%"."""
    share, word = _read_share(text), text.strip()
    if share is None or not 0 < share <= 1:
        raise ValueError("must be a share of the run between 0% and 100%")
    return f"{format_number(float(word[:-1]) if word.endswith('%') else round(share * 100, 12))}%"


def _time(value: Any) -> Any:
    """Parse a time such as "2 hours"; leave anything but text and numbers to pydantic."""
    text = str(value) if isinstance(value, (int, float)) else value
    if not isinstance(text, str):
        return value
    if _bare_number(text) is not None:
        raise ValueError(
            f"it has no unit. Use '{text} seconds', '{text} minutes' or '{text} hours'"
        )
    return str(parse_duration(text, ("minutes",)))


def _recomputed(text: str) -> str:
    words = text.split()
    is_count = len(words) == 2 and words[1].isdigit() and int(words[1]) > 0
    if not words or (words[0] == "every" and not is_count):
        raise ValueError("must be off, on, 'every 2' or names of modules")
    return " ".join(words)


def _block_choice(text: str) -> str:
    how, *words = text.split() or [""]
    if how == "size":
        try:
            right = len(words) == 1 and 1 <= float(words[0]) < math.inf
        except ValueError:
            right = False
    else:
        right = bool(words) if how in ("class", "name") else how == "auto" and not words
    if not right:
        raise ValueError("must be auto, 'class Block', 'size 1e6' or 'name layers.*'")
    return " ".join([how, *words])


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


_INDICES = re.compile(r"\s*\d+\s*(,\s*\d+\s*)+")


def _samples(value: Any) -> str | tuple[int, ...]:
    """Parse a file name, or sample indices; a single word that is not a number is a file name."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, (str, int)):
        value = [value]
    if isinstance(value, Sequence) and len(value) == 1 and _INDICES.fullmatch(str(value[0])):
        value = str(value[0]).split(",")
    if not isinstance(value, Iterable):
        raise ValueError("must be the name of a file, or indices of samples such as [3, 17]")
    words = [item if isinstance(item, str) else int(item) for item in value]
    if len(words) == 1 and isinstance(words[0], str) and not words[0].lstrip("-").isdigit():
        return words[0]
    try:
        samples = tuple(map(int, words))
    except ValueError:
        raise ValueError("must be the name of one file, or indices such as [3, 17]") from None
    if not samples or min(samples) < 0:
        raise ValueError("must be indices of samples, from 0 on, and at least one")
    return samples


def _table(value: Any) -> str:
    """Read a JSON object from a dict, a file or text, and return it as text."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    text = os.fspath(value)
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"the file cannot be read: {error.strerror}") from error
    try:
        table = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it must be a JSON object: {error}") from error
    except RecursionError:
        raise ValueError("it must be a JSON object, and this one is nested too deeply") from None
    if not isinstance(table, dict):
        raise ValueError("it must be a JSON object, such as '{\"overlap_comm\": true}'")
    return json.dumps(table)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Number = BeforeValidator(_text)
DURATION = "a Duration in the Plan"
Period = Annotated[str, _interval("epochs", "steps", "items", shares=True), Number, DURATION]
ClockPeriod = Annotated[
    str, _interval("epochs", "steps", "items", "minutes", shares=True), Number, DURATION
]
Clock = Annotated[str, BeforeValidator(_time), DURATION]
StepPeriod = Annotated[str, _interval("epochs", "steps", shares=False), Number, DURATION]
Warmup = Annotated[str, _length(at_least_zero=True), Number]
Length = Annotated[str, _length(at_least_zero=False), Number]
Milestones = Annotated[tuple[Length, ...], BeforeValidator(_milestones)]
Steps = Annotated[str, BeforeValidator(_range)]
SamplesOrFile = Annotated[str | tuple[int, ...], BeforeValidator(_samples)]
BlockChoice = Annotated[str, AfterValidator(_block_choice)]
TableOrFile = Annotated[str, BeforeValidator(_table)]
Recomputed = Annotated[str, AfterValidator(_recomputed)]
