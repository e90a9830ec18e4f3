"""The types of the values in JSON files that are read again, and how a value is checked.

Files may come from anyone. A run folder's file may have more keys, and lack those that a later
version added; a checkpoint's `state.json` has exactly these, in state_schema.py.
"""

from functools import partial
from typing import Annotated, Any, Literal, NotRequired

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    with_config,
)
from typing_extensions import TypedDict

CONFIG_FORMAT = 3
INCIDENT_FORMAT = 3
MEMORY_FORMAT = 1
EVENTS_FORMAT = 2
STUDY_FORMAT = 3
MIRROR_FORMAT = 1
PROOF_FORMAT = 1
PROOF = "proof.json"  # in a run that surestep train --prove began
UNDOING = ("resume", "restart", "rollback")  # events that undo the steps after their own
LARGEST = 2**40  # steps, epochs: more than any run has
MAX_INT = 2**63 - 1
# Types made by calls, which mypy cannot follow.
_typed_dict: Any = TypedDict
list_of: Any = list
dict_of: Any = dict
_annotated: Any = Annotated
adapter: Any = TypeAdapter


class NewerFormatError(ValueError):
    """A file has a format that a newer surestep wrote."""


def validate(schema: TypeAdapter[Any], value: Any) -> Any:
    """Return a value that fits a schema.

    Raises:
        NewerFormatError: the file has a newer format.
        ValueError: the value does not fit; the message names the first key that does not.
    """
    try:
        return schema.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, NewerFormatError):
        raise cause
    *above, last = first["loc"] or ("",)
    if first["type"] == "missing":
        raise ValueError(f"{_path(above)} lacks {last}")
    if first["type"] == "extra_forbidden":
        raise ValueError(f"{_path(above)} has {format_value(last)}, which is not a known key")
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    raise ValueError(f"{_path(first['loc'])} is {format_value(first['input'])}: {message}")


def _path(keys: Any) -> str:
    return "it" + "".join(
        f"[{key}]" if isinstance(key, int) else f".{format_value(key).strip(chr(39))}"
        for key in keys
    )


def format_value(value: Any) -> str:
    """Return a value as a message shows it: without line breaks, and not longer than 60."""
    text = repr(value[:100] if isinstance(value, (str, list)) else value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _as_number(value: Any) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    if type(value) is float or (type(value) is int and abs(value) < 2**1023):
        return value  # an int stays an int
    raise ValueError("it should be a number")


def _as_numbers(value: Any) -> Any:
    return [_as_numbers(item) for item in value] if isinstance(value, list) else _as_number(value)


Count = Annotated[int, Field(ge=0, le=LARGEST)]
Size = Annotated[int, Field(ge=0, le=MAX_INT)]
Int32 = Annotated[int, Field(ge=0, lt=2**31)]
Number = Annotated[Any, PlainValidator(_as_number)]
Numbers = Annotated[Any, PlainValidator(_as_numbers)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=2.0**127, allow_inf_nan=False)]
Pair = Annotated[list[Size], Field(min_length=2, max_length=2)]
Share = Annotated[float, Field(ge=0, le=1)]


def check_version(value: int, newest: int) -> int:
    """Return the format of a file, if this surestep can read it.

    Raises:
        NewerFormatError: a newer surestep wrote it.
    """
    if value > newest:
        raise NewerFormatError(
            f"has format {value}, and this surestep reads up to {newest}. Install a newer one: "
            "pip install -U surestep."
        )
    return value


def _version(newest: int) -> Any:
    return Annotated[Size, AfterValidator(partial(check_version, newest=newest))]


def exact(**types: Any) -> Any:
    """Return the type of a dict with exactly these keys."""
    config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    return with_config(config)(_typed_dict("Exact", types))


def _open(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Any:
    """Return the type of a dict that may have more keys, which no one reads."""
    types = {**required, **{key: NotRequired[item] for key, item in (optional or {}).items()}}
    config = ConfigDict(extra="allow", strict=True, defer_build=True)
    return with_config(config)(_typed_dict("Open", types))


def or_empty(kind: Any) -> Any:
    """Return a type that allows an empty dict too."""
    return Annotated[
        kind, WrapValidator(lambda value, check: value if value == {} else check(value))
    ]


PROGRESS = exact(step=Count, steps_taken=Count, epoch=Count, position=Count, items=Number)
_CONFIG = _open(
    {
        "recipe": or_empty(_open({"name": str, "path": str, "sha256": str})),
        "task": dict[str, Any],
        "config": _open({}, {"epochs": Number | None, "max_steps": Count | None}),
    },
    {
        "format": _version(CONFIG_FORMAT),
        "code": dict[str, str],
        "task_defaults": dict[str, Any],
        "decided": _open({}, {"total_steps": Count | None}),
        "data": _open({}, {"exclude_samples": list[Size]}),
        "machine": dict[str, Any],
        "modules": dict[str, dict[str, Any]],
        "study": str,
        "tuned": dict[str, Any],
        "from": _open({"run": str, "which": str, "step": Count}) | None,
        "lr_find": Positive,
    },
)
CONFIG = adapter(_CONFIG)

LR_FIND = adapter(
    _open(
        {
            **dict.fromkeys(("option", "why"), str),
            "lr": Positive,
            "seeds": list_of[Size],
            "curves": list_of[
                _open({"rates": list_of[Positive], "losses": list_of[Finite | None]})
            ],
        },
        {
            "trainings": list_of[_open({"lr": Positive, "losses": list_of[Finite | None]})],
            "spread": list_of[Positive] | None,
        },
    )
)
_NUMBERS_AT_END = {
    **dict.fromkeys(("step", "epoch", "steps_taken", "overflow", "nonfinite", "no_items"), Count),
    **dict.fromkeys(("items", "seconds", "data_wait_s"), Number),
    "clipped": Count | None,
    "reason": str,
}
_FINDING = _open(
    dict.fromkeys(("rule", "severity", "message", "fix"), str),
    {"name": str, "file": str, "line": Count, "column": Count, "evidence": dict[str, Any]},
)
_NAMED_SAMPLES = _annotated[list[Size], Field(max_length=1000)]
DATA_FINDINGS = adapter(
    _open(
        {
            **{"setup": str, "code": dict[str, str], "read": str, "ignored": list[str]},
            "sets": dict_of[str, _open({"digest": str, "samples": _NAMED_SAMPLES})],
            "findings": list_of[
                _open(
                    {
                        **dict.fromkeys(("rule", "name", "file", "message", "fix"), str),
                        "severity": Literal["error", "warning", "speed", "info"],
                        **{"line": Count, "column": Count, "evidence": dict[str, Any]},
                    }
                )
            ],
        }
    )
)
_MONITOR = _annotated[tuple[str, Literal["min", "max"]], Field(strict=False)] | None


def _check_finished(status: Any) -> Any:
    if status["status"] == "finished" and (lacks := sorted(_NUMBERS_AT_END.keys() - status.keys())):
        raise ValueError(f"it lacks {', '.join(lacks)}")
    return status


STATUS = adapter(
    _annotated[
        _open(
            {"status": str},
            {
                **{"monitor": _MONITOR, "findings": list_of[_FINDING], "micro_batch_size": Count},
                **_NUMBERS_AT_END,
            },
        ),
        AfterValidator(_check_finished),
    ]
)
PLAN_ENTRIES = adapter(list_of[_open({"option": str, "value": Any}, {"reason": str})])
_OPTIONS = adapter(
    _open(
        {},
        {
            "checkpoint.keep_last": Count,
            "checkpoint.keep_best": Count,
            "checkpoint.keep_every": str | None,
            "steps_per_epoch": Count | None,
            "batch_size": Count | None,
            "logging.trackers": list_of[str] | None,
        },
    )
)


def _as_options(found: Any) -> Any:
    return validate(
        _OPTIONS, {item["option"]: item["value"] for item in validate(PLAN_ENTRIES, found)}
    )


PLAN = adapter(_annotated[Any, PlainValidator(_as_options)])  # value by option
ENVIRONMENT = adapter(dict[str, Any])
PROVED = adapter(dict[str, Any])  # the content of PROOF
EVENT = adapter(_open({"event": str}, {"time": Number}))
AT_STEP = adapter(_open({"step": Count}))
_WARM_START = _open({"study": str, "name": str, "numbers": list_of[Size], "is_other": bool})
STUDY = adapter(
    _open(
        {
            "format": _version(STUDY_FORMAT),
            "recipe": dict[str, str],
            "fixed": dict[str, Any],
            "space": dict[str, Any],
            "objectives": list_of[
                _annotated[tuple[str, Literal["min", "max"]], Field(strict=False)]
            ],
            **dict.fromkeys(("sampler", "pruner", "name"), str),
            "storage": str | None,
            "seed": Size,
            **dict.fromkeys(("trials", "threads", "nproc"), Count),
        },
        {
            **{"enqueued": list_of[dict[str, Any]], "where": list_of[str]},
            "warm_start": _WARM_START | None,
        },
    )
)
_TENSOR = _open({"name": str, "dtype": str, "shape": list_of[_annotated[int, Field(ge=-1)]]})
SIGNATURE = adapter(_open({"inputs": list_of[_TENSOR], "outputs": list_of[_TENSOR]}))
_EVALUATED = _open({"step": Size, "metrics": dict[str, Number]})
_MAY_TRACK = {"key": str, "is_open": bool, "evaluated": list_of[_EVALUATED]}
TRACKER = adapter(_open({"offset": Size, "state": dict[str, Any]}, _MAY_TRACK))
_WRITER = _open({"host": str, "pid": Size, "token": str, "time": Number})
MIRROR = adapter(
    _open(
        {"format": _version(MIRROR_FORMAT), "id": str, "writer": _WRITER | None},
        {"started": bool, "saved": bool, "address": str},
    )
)
MIRRORED = adapter(
    _open(
        {
            **{"id": str, "address": str, "fetching": bool},
            **{"elsewhere": list[str], "damaged": list[str]},
        },
        {"abandoned": dict[str, str]},
    )
)
# Of a step: null if it has none, text if it is not finite. In Rust, since a run has millions.
_Value = float | Literal["nan", "inf", "-inf"] | None
_OF_LAYERS = dict_of[str, Number]
_HISTOGRAM = _open(
    {
        **dict.fromkeys(("min", "max", "sum", "sum_squares"), Number),
        "counts": Annotated[list[Size], Field(min_length=1)],
    }
)
STEPS = adapter(
    _open(
        {
            **{"event": Literal["steps"], "time": Finite, "first": Count, "epoch": Count},
            **dict.fromkeys(("loss", "grad_norm", "lr"), list_of[_Value]),
            **{"items": Number, "samples": Size, "seconds": Finite, "data_wait_s": Finite},
        },
        {
            "logged": dict_of[str, list_of[_Value]],
            "group_lr": dict[str, Number],
            "peak_memory": Size | None,
            "progress": PROGRESS,
            "layers": _open(
                {"step": Count},
                dict.fromkeys(("grad_norm", "weight_norm", "update_norm"), _OF_LAYERS),
            ),
        },
    )
)
EVENTS: dict[str, TypeAdapter[Any]] = {  # those that are read again
    "format": adapter(_open({"version": _version(EVENTS_FORMAT)})),
    "steps": STEPS,
    "evaluation": adapter(
        _open(
            {"time": Finite, "step": Count, "metrics": dict_of[str, Numbers | None]},
            {"measured": Literal["weights", "average"], "which": str, "seconds": Finite},
        )
    ),
    "histograms": adapter(
        _open(
            {
                **{"time": Finite, "step": Count},
                **dict.fromkeys(("weights", "gradients"), dict_of[str, _HISTOGRAM]),
            }
        )
    ),
    "decision_points": adapter(
        _open({**dict.fromkeys(("x", "y"), list_of[Finite]), "labels": list_of[int]})
    ),
    "decision_regions": adapter(
        _open(
            {
                **{"step": Count, "measured": Literal["weights", "average"], "content": str},
                **dict.fromkeys(
                    ("x", "y"), _annotated[list[Finite], Field(min_length=2, max_length=2)]
                ),
                "cells": Annotated[int, Field(ge=1, le=256)],
                "n_classes": Annotated[int, Field(ge=1, le=64)],
            }
        )
    ),
    "end": adapter(_open({"status": str}, {"reason": str, "findings": list_of[_FINDING]})),
    **dict.fromkeys((*UNDOING, "checkpoint", "incident"), AT_STEP),
    "micro_batch": adapter(
        _open(
            {"step": Size, "size": Count, "why": str},
            {
                **{"split": str | None, "before": Count, "error": str},
                **dict.fromkeys(("allocated", "reserved"), Size | None),
            },
        )
    ),
    "branch": adapter(_open({"run": str, "step": Count})),
    "skipped": adapter(
        _open(
            {
                "step": Count,
                "epoch": Count,
                "reason": str,
                "positions": Pair | None,
                "samples": list[Size] | None,
            }
        )
    ),
}
_DIAGNOSIS = _open(
    {
        "cause": _open(dict.fromkeys(("module", "operation", "name"), str | None)) | None,
        "samples": _open({"samples": list_of[_open({"position": Size, "index": Size | None})]}),
    },
    {"outputs": str | None},
)
_MICRO_BATCH = _open(
    {
        **dict.fromkeys(("args", "kwargs", "targets"), Any),
        "items": Number,
        "samples": Size,
        "position": Size,
        "part_items": list[Number],
    }
)
MEMORY_REPORT = adapter(_open({"format": _version(MEMORY_FORMAT), "where": str, "text": str}))
INCIDENT = adapter(
    _open(
        {
            "format": _version(INCIDENT_FORMAT),
            "step": Count,
            "checkpoint": str,
            "run_config": _CONFIG,
            "progress": PROGRESS,
            "is_manual": bool,
            "loss": Number | None,
            "grad_norm": Number | None,
            "norms": list_of[_annotated[tuple[str, Number], Field(strict=False)]],
            "text": str,
            "diagnosis": _DIAGNOSIS | None,
            "batch": list_of[_MICRO_BATCH] | None,
            "not_saved": list[str],
            "bytes": Size,
            "sha256": str,
        }
    )
)
