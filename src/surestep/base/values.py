"""What an option's value may be, beyond its type."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from surestep.base.duration import Unit, exact, parse_duration


def _duration(*units: Unit) -> AfterValidator:
    return AfterValidator(lambda text: str(parse_duration(text, units)))


def _warmup(text: str) -> str:
    if text.endswith("%"):
        try:
            share = float(text[:-1])
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            raise ValueError("must be a share of the run between 0% and 100%")
        return f"{exact(share)}%"
    if text.strip() in ("0", "0 steps", "0 epochs"):
        return "0%"
    return str(parse_duration(text, ("steps", "epochs")))


def read_length(text: str) -> str:
    """Read "500 steps", "2 epochs" or a share of the run such as "10%", above zero.

    Raises:
        ValueError: anything else.
    """
    if not text.endswith("%"):
        return str(parse_duration(text, ("steps", "epochs")))
    length = _warmup(text)
    if length == "0%":
        raise ValueError("must be above 0%")
    return length


def _recomputed(text: str) -> str:
    words = text.split()
    if words[:1] == ["every"] and (len(words) != 2 or not words[1].isdigit() or int(words[1]) < 1):
        raise ValueError("must be off, on, 'every 2' or names of modules")
    if not words:
        raise ValueError("must be off, on, 'every 2' or names of modules")
    return " ".join(words)


def _block_choice(text: str) -> str:
    how, *words = text.split() or [""]
    if how == "size":
        try:
            right = len(words) == 1 and float(words[0]) >= 1
        except ValueError:
            right = False
    else:
        right = bool(words) if how in ("class", "name") else how == "auto" and not words
    if not right:
        raise ValueError("must be auto, 'class Block', 'size 1e6' or 'name layers.*'")
    return " ".join([how, *words])


def _range(text: str) -> str:
    first, _, last = text.partition(":")
    if not (first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise ValueError("must be the first and the last step, such as '10:15'")
    return f"{int(first)}:{int(last)}"


def _samples(value: Any) -> str | tuple[int, ...]:
    """Read the name of a file, or indices of samples; one word that is no number is a name."""
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Iterable):
        raise ValueError("must be the name of a file, or indices of samples such as [3, 17]")
    words = [each if isinstance(each, str) else int(each) for each in value]
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
    """Read a table of JSON, from a file, a text or as it is; return it as text."""
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
        raise ValueError(f"it must be a table in JSON, and is none: {error}") from error
    if not isinstance(table, dict):
        raise ValueError("it must be a table in JSON, such as '{\"overlap_comm\": true}'")
    return json.dumps(table)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]
Period = Annotated[str, _duration("epochs", "steps", "items")]
ClockPeriod = Annotated[str, _duration("epochs", "steps", "items", "minutes")]
Clock = Annotated[str, _duration("minutes")]
StepPeriod = Annotated[str, _duration("epochs", "steps")]
Warmup = Annotated[str, AfterValidator(_warmup)]
Length = Annotated[str, AfterValidator(read_length)]
Steps = Annotated[str, AfterValidator(_range)]
SamplesOrFile = Annotated[str | tuple[int, ...], BeforeValidator(_samples)]
BlockChoice = Annotated[str, AfterValidator(_block_choice)]
TableOrFile = Annotated[str, BeforeValidator(_table)]
Recomputed = Annotated[str, AfterValidator(_recomputed)]
