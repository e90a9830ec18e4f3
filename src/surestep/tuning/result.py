"""result.json of a study: the winner, and each measurement of the test split by its trial."""

import os
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from surestep.record.io import read_json

RESULT = "result.json"
RESULT_FORMAT = 1
_HINT = (
    "Put a copy of it back, or delete it: the next search then chooses the winner again, and "
    "measures its test split again."
)
_OPEN = ConfigDict(extra="allow")


@with_config(_OPEN)
class ConfirmedTrial(TypedDict):
    """A trial that was trained again with other seeds."""

    number: int
    values: list[float]
    mean: float
    spread: float


@with_config(_OPEN)
class RecordedWinner(TypedDict):
    """The trial that a search chose."""

    number: int
    params: NotRequired[dict[str, Any]]
    values: NotRequired[dict[str, float | None]]
    test: dict[str, float | None] | None
    confirmed: list[ConfirmedTrial] | None


@with_config(_OPEN)
class _TestMetrics(TypedDict):
    run: str
    metrics: dict[str, float | None] | None


@with_config(_OPEN)
class _Result(TypedDict):
    format: NotRequired[int]
    winner: RecordedWinner | None
    test: NotRequired[dict[str, _TestMetrics]]


_RESULT: TypeAdapter[Any] = TypeAdapter(_Result)  # it reads NaN, which JSON has as text


def read_result(folder: Path) -> dict[str, Any]:
    """Read the result of a study; an empty one if no search has ended yet.

    Raises:
        RunError: the file cannot be read.
    """
    path = folder / RESULT
    found = read_json(path, _RESULT, hint=_HINT) if os.path.lexists(path) else {}
    return {"format": RESULT_FORMAT, "winner": None, "test": {}, **found}
