"""The types of the values in JSON files that are read again, and how a value is checked.

Files may come from anyone. A run folder's file may have more keys, and lack those that a later
version added; a checkpoint's `state.json` has exactly these.
"""

import math
from collections.abc import Mapping, Sequence
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
EVENTS_FORMAT = 2
STUDY_FORMAT = 3
MIRROR_FORMAT = 1
UNDOING = ("resume", "restart", "rollback")  # events that undo the steps after their own
LARGEST = 2**40  # steps, epochs: more than any run has
MAX_INT = 2**63 - 1
# Types made by calls, which mypy cannot follow.
_typed_dict: Any = TypedDict
_list: Any = list
_dict: Any = dict
_annotated: Any = Annotated
_adapter: Any = TypeAdapter


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


def _version(newest: int) -> Any:
    def check(value: int) -> int:
        if value > newest:
            raise NewerFormatError(
                f"has format {value}, and this surestep reads up to {newest}. Install a newer one: "
                "pip install -U surestep."
            )
        return value

    return Annotated[Size, AfterValidator(check)]


def _exact(**types: Any) -> Any:
    """Return the type of a dict with exactly these keys."""
    config = ConfigDict(extra="forbid", strict=True, defer_build=True)
    return with_config(config)(_typed_dict("Exact", types))


def _open(required: dict[str, Any], optional: dict[str, Any] | None = None) -> Any:
    """Return the type of a dict that may have more keys, which no one reads."""
    types = {**required, **{key: NotRequired[item] for key, item in (optional or {}).items()}}
    config = ConfigDict(extra="allow", strict=True, defer_build=True)
    return with_config(config)(_typed_dict("Open", types))


def _or_empty(kind: Any) -> Any:
    return Annotated[
        kind, WrapValidator(lambda value, check: value if value == {} else check(value))
    ]


_PROGRESS = _exact(step=Count, steps_taken=Count, epoch=Count, position=Count, items=Number)
_STATE = _adapter(
    _exact(
        progress=_PROGRESS,
        counts=_exact(
            overflow=Count, nonfinite=Count, no_items=Count, clipped=Count, after_spike=Count
        ),
        best=_exact(
            metric=str | None,
            best=Number | None,
            best_step=Count | None,
            since_best=Count,
            latest_step=Count | None,
            latest=dict[str, Numbers],
            measured=Literal["weights", "average"],
            data=NotRequired[str | None],  # since format 7
            is_due=bool,
        ),
        plateau=_exact(scale=Share, best=Number | None, bad=Count, cooling=Count),
        spikes=_exact(losses=list[Finite], skipped_steps=list[Pair], rollbacks=Count),
        cycle=Count | None,
        scaler=_or_empty(
            _exact(
                scale=Positive,
                growth_factor=Positive,
                backoff_factor=Positive,
                growth_interval=Int32,
                _growth_tracker=Int32,
            )
        ),
        metadata=dict[str, Any],
        aliases=dict[str, str],
        extra=dict[str, Any],
        base=dict[str, str],
        empty=NotRequired[list[str]],  # since format 7
        requires_grad=NotRequired[dict[str, bool]],  # since format 7
        optimizers=_dict[
            str,
            _exact(
                **{"class": str},
                values=dict[str, Any],
                groups=_list[_exact(names=list[str], options=dict[str, Any])],
            ),
        ],
        callback_states=dict[str, Any],
    )
)


def parse_state(found: Any) -> dict[str, Any]:
    """Return the content of a checkpoint's `state.json`."""
    record = validate(_STATE, found)
    progress, best, step = record["progress"], record["best"], record["progress"]["step"]
    evaluations = step + 1  # one before the first step, and one after each
    at_most = {
        "progress.steps_taken": (progress["steps_taken"], step),
        "progress.epoch": (progress["epoch"], step),
        "progress.position": (progress["position"], LARGEST if step else 0),
        "progress.items": (progress["items"], 2.0**53 if step else 0),
        "best.best_step": (best["best_step"] or 0, step),
        "best.latest_step": (best["latest_step"] or 0, step),
        "best.since_best": (best["since_best"], evaluations),
        "plateau.bad": (record["plateau"]["bad"], evaluations),
    }
    for name, (value, most) in at_most.items():
        if not 0 <= value <= most:
            raise ValueError(f"{name} is {value}, and it can be at most {most} at step {step}")
    is_set, latest = best["best"] is not None, best["latest_step"]
    if is_set != (best["best_step"] is not None):
        raise ValueError("only one of best.best and best.best_step is null")
    if is_set and (latest is None or latest < best["best_step"]):
        raise ValueError(
            f"best.latest_step is {latest}, and best.best_step, an earlier evaluation, is "
            f"{best['best_step']}"
        )
    for first, last in record["spikes"]["skipped_steps"]:
        if first > last:
            raise ValueError(f"spikes.skipped_steps has a range from {first} to {last}")
    _check_best(best)
    return dict(record)


def check_counts(record: Mapping[str, Any]) -> None:
    """Check the counts of a `state.json` against its steps.

    Raises:
        ValueError: they cannot be those of a run.
    """
    progress, counts = record["progress"], record["counts"]
    step, taken = progress["step"], progress["steps_taken"]
    skipped = sum(counts[name] for name in ("overflow", "nonfinite", "no_items", "after_spike"))
    if skipped != step - taken:
        raise ValueError(
            f"counts has {skipped} skipped steps, and progress has {step} steps of which {taken} "
            "were taken"
        )
    if taken and not progress["items"]:
        raise ValueError(f"progress.items is 0 after {taken} steps that were taken")
    if counts["clipped"] > taken:
        raise ValueError(f"counts.clipped is {counts['clipped']}, and {taken} steps were taken")


def check_progress(progress: Mapping[str, Any], recorded: Sequence[Mapping[str, Any]]) -> None:
    """Check the progress of a `state.json` against what the events have of its step, if anything.

    Data whose length is not known ends an epoch after its last step was recorded.

    Raises:
        ValueError: it is none of these.
    """
    for known in recorded:
        ended = {**known, "epoch": known["epoch"] + 1, "position": 0}
        if progress in (known, ended):
            return
    for known in recorded[-1:]:
        name = next(name for name in known if progress[name] != known[name])
        raise ValueError(
            f"progress.{name} is {progress[name]}, and events.jsonl has {known[name]} after step "
            f"{known['step']}"
        )


def _check_best(best: dict[str, Any]) -> None:
    """Check the best metric, and if the latest evaluation has it, that both have one value."""
    if best["best"] is None:
        return
    if not math.isfinite(best["best"]):
        raise ValueError(f"best.best is {best['best']}, and the best is always finite")
    if best["latest_step"] != best["best_step"]:
        return
    if best["since_best"]:
        raise ValueError(f"best.since_best is {best['since_best']}, and the latest is the best")
    latest = best["latest"].get(best["metric"])
    if latest not in (None, best["best"]):
        raise ValueError(
            f"best.best is {best['best']}, and best.latest of that step has {best['metric']}: "
            f"{format_value(latest)}"
        )


_CONFIG = _open(
    {
        "recipe": _or_empty(_open({"name": str, "path": str, "sha256": str})),
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
        "from": _open({"run": str, "which": str, "step": Count}) | None,
    },
)
CONFIG = _adapter(_CONFIG)

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
DATA_FINDINGS = _adapter(
    _open(
        {
            **{"setup": str, "code": dict[str, str], "read": str, "ignored": list[str]},
            "sets": _dict[str, _open({"digest": str, "samples": _NAMED_SAMPLES})],
            "findings": _list[
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


STATUS = _adapter(
    _annotated[
        _open(
            {"status": str},
            {"monitor": _MONITOR, "findings": _list[_FINDING], **_NUMBERS_AT_END},
        ),
        AfterValidator(_check_finished),
    ]
)
_PLAN = _adapter(_list[_open({"option": str, "value": Any})])
_OPTIONS = _adapter(
    _open(
        {},
        {
            "checkpoint.keep_last": Count,
            "checkpoint.keep_best": Count,
            "checkpoint.keep_every": str | None,
            "steps_per_epoch": Count | None,
            "batch_size": Count | None,
            "logging.trackers": _list[str] | None,
        },
    )
)


def _as_options(found: Any) -> Any:
    return validate(_OPTIONS, {item["option"]: item["value"] for item in validate(_PLAN, found)})


PLAN = _adapter(_annotated[Any, PlainValidator(_as_options)])  # value by option
ENVIRONMENT = _adapter(dict[str, Any])
EVENT = _adapter(_open({"event": str}, {"time": Number}))
AT_STEP = _adapter(_open({"step": Count}))
_WARM_START = _open({"study": str, "name": str, "numbers": _list[Size], "is_other": bool})
STUDY = _adapter(
    _open(
        {
            "format": _version(STUDY_FORMAT),
            "recipe": dict[str, str],
            "fixed": dict[str, Any],
            "space": dict[str, Any],
            "objectives": _list[_annotated[tuple[str, Literal["min", "max"]], Field(strict=False)]],
            **dict.fromkeys(("sampler", "pruner", "name"), str),
            "storage": str | None,
            "seed": Size,
            **dict.fromkeys(("trials", "threads", "nproc"), Count),
        },
        {
            **{"enqueued": _list[dict[str, Any]], "where": _list[str]},
            "warm_start": _WARM_START | None,
        },
    )
)
_TENSOR = _open({"name": str, "dtype": str, "shape": _list[_annotated[int, Field(ge=-1)]]})
SIGNATURE = _adapter(_open({"inputs": _list[_TENSOR], "outputs": _list[_TENSOR]}))
_EVALUATED = _open({"step": Size, "metrics": dict[str, Number]})
_MAY_TRACK = {"key": str, "is_open": bool, "evaluated": _list[_EVALUATED]}
TRACKER = _adapter(_open({"offset": Size, "state": dict[str, Any]}, _MAY_TRACK))
_WRITER = _open({"host": str, "pid": Size, "token": str, "time": Number})
MIRROR = _adapter(
    _open(
        {"format": _version(MIRROR_FORMAT), "id": str, "writer": _WRITER | None},
        {"started": bool, "saved": bool, "address": str},
    )
)
MIRRORED = _adapter(
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
_OF_LAYERS = _dict[str, Number]
_HISTOGRAM = _open(
    {
        **dict.fromkeys(("min", "max", "sum", "sum_squares"), Number),
        "counts": Annotated[list[Size], Field(min_length=1)],
    }
)
STEPS = _adapter(
    _open(
        {
            **{"event": Literal["steps"], "time": Finite, "first": Count, "epoch": Count},
            **dict.fromkeys(("loss", "grad_norm", "lr"), _list[_Value]),
            **{"items": Number, "samples": Size, "seconds": Finite, "data_wait_s": Finite},
        },
        {
            "logged": _dict[str, _list[_Value]],
            "group_lr": dict[str, Number],
            "peak_memory": Size | None,
            "progress": _PROGRESS,
            "layers": _open(
                {"step": Count},
                dict.fromkeys(("grad_norm", "weight_norm", "update_norm"), _OF_LAYERS),
            ),
        },
    )
)
EVENTS: dict[str, TypeAdapter[Any]] = {  # those that are read again
    "format": _adapter(_open({"version": _version(EVENTS_FORMAT)})),
    "steps": STEPS,
    "evaluation": _adapter(
        _open(
            {"time": Finite, "step": Count, "metrics": _dict[str, Numbers | None]},
            {"measured": Literal["weights", "average"], "which": str, "seconds": Finite},
        )
    ),
    "histograms": _adapter(
        _open(
            {
                **{"time": Finite, "step": Count},
                **dict.fromkeys(("weights", "gradients"), _dict[str, _HISTOGRAM]),
            }
        )
    ),
    "end": _adapter(_open({"status": str}, {"reason": str, "findings": _list[_FINDING]})),
    **dict.fromkeys((*UNDOING, "checkpoint", "incident"), AT_STEP),
    "branch": _adapter(_open({"run": str, "step": Count})),
    "skipped": _adapter(
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
        "samples": _open({"samples": _list[_open({"position": Size, "index": Size | None})]}),
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
INCIDENT = _adapter(
    _open(
        {
            "format": _version(INCIDENT_FORMAT),
            "step": Count,
            "checkpoint": str,
            "run_config": _CONFIG,
            "progress": _PROGRESS,
            "is_manual": bool,
            "loss": Number | None,
            "grad_norm": Number | None,
            "norms": _list[_annotated[tuple[str, Number], Field(strict=False)]],
            "text": str,
            "diagnosis": _DIAGNOSIS | None,
            "batch": _list[_MICRO_BATCH] | None,
            "not_saved": list[str],
            "bytes": Size,
            "sha256": str,
        }
    )
)
