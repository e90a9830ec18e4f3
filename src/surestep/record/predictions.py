"""What a run keeps of its predictions: `RUN/predictions.json`, for the report of the run."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from surestep.base.files import replace_file
from surestep.record.io import (
    dumps,
    explain_write_errors,
    parse_json,
    read_regular,
    unreadable_error,
)
from surestep.record.schemas import (
    Count,
    Finite,
    Number,
    Positive,
    Share,
    Size,
    check_version,
    validate,
)

PREDICTIONS_FORMAT = 1
NAME = "predictions.json"
MOST_BYTES = 300_000  # of the file
_MOST_READ = 2**21
_HINT = "Delete it: the next evaluation writes another one."
_OPEN = ConfigDict(extra="allow", strict=True, defer_build=True)
Text = Annotated[str, Field(max_length=1000)]
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
_Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _check_bin(found: Any) -> Any:
    count, *shares = found
    if any((share is None) == (count > 0) for share in shares):
        raise ValueError("a bin has shares only if it has a count")
    return found


def _check_matrix(found: Any) -> Any:
    if any(len(row) != len(found) for row in found):
        raise ValueError("a matrix has as many columns as rows")
    return found


_Bin = Annotated[
    tuple[Size, Share | None, Share | None], Field(strict=False), AfterValidator(_check_bin)
]
_Matrix = Annotated[list[list[Size]], AfterValidator(_check_matrix)]
_Point = Annotated[list[Finite], Field(min_length=2, max_length=2)]


@with_config(_OPEN)
class SampleInput(TypedDict):
    """The input of a sample.

    Attributes:
        kind: "picture", "integers" (such as token ids), "numbers", or "none".
        shape: of the input; the content may be smaller.
        png: of a picture: a PNG file in base64.
        size: of the PNG: height, width, channels.
        range: of a picture: its values were scaled from this range.
        values: of integers or numbers; the first ones.
        why: of "none".
    """

    kind: Literal["picture", "integers", "numbers", "none"]
    shape: NotRequired[list[Size]]
    png: NotRequired[Base64]
    size: NotRequired[Annotated[list[Count], Field(min_length=3, max_length=3)]]
    range: NotRequired[Annotated[list[Number], Field(min_length=2, max_length=2)]]
    values: NotRequired[list[Number]]
    why: NotRequired[Text]


@with_config(_OPEN)
class SamplePrediction(TypedDict):
    """A sample with its prediction.

    Attributes:
        index: of the sample in its set, from 0; its position in a stream; with `row`, that of the
            first sample of its batch.
        row: in a batch whose rows are not the samples that were read, such as a ready one.
        loss: of this sample alone.
        target: a class, a label (0 or 1) or a number; the first ones of several in a list.
        prediction: likewise; -1 for a class or label whose outputs are not finite.
        confidence: the probability of the predicted class or label; of several that of the most
            confident error, None without one.
        elements: how many targets the sample has, if several.
        n_kept: how many of them are not ignored.
        n_wrong: how many predictions of those are wrong.
    """

    index: Size
    row: NotRequired[Size]
    loss: Number
    target: Number | list[Number]
    prediction: Number | list[Number]
    confidence: NotRequired[Share | None]
    elements: NotRequired[Size]
    n_kept: NotRequired[Size]
    n_wrong: NotRequired[Size]
    input: SampleInput


@with_config(_OPEN)
class Calibration(TypedDict):
    """Confidence and accuracy.

    Attributes:
        bins: [count, mean confidence, accuracy] of the bins (i / 15, (i + 1) / 15]; both are None
            in an empty one.
        ece: the expected calibration error, from 0 to 1; None without predictions.
    """

    bins: list[_Bin]
    ece: Share | None


@with_config(_OPEN)
class Residuals(TypedDict):
    """A histogram of predictions minus targets: bin i begins at first + i * width."""

    first: Finite
    width: Positive
    counts: Annotated[list[Size], Field(min_length=1)]


def _check_listed(found: Any) -> Any:
    for name in ("worst", "confident"):
        for number in found.get(name, ()):
            if number >= len(found.get("samples", ())):
                raise ValueError(f"{name} has {number}, which is not an index of its samples")
    return found


@with_config(_OPEN)
class SetPredictions(TypedDict):
    """The predictions of one validation set, by one loss.

    Attributes:
        set: name of the validation set.
        loss: name of the loss; "" of a single one.
        kind: "classes", "labels" (each 0 or 1), "numbers", or "none".
        why: of "none": why there are none to show. Otherwise why there is no confusion matrix.
        is_stream: indices of samples are positions in a stream.
        limit_batches: only these first batches were evaluated (`limit_val_batches`).
        n_samples, n_elements: how many were counted; of ignored targets only the samples.
        classes: number of classes; 2 for labels.
        class_names: of the classes that occur below, by class as text.
        matrix: counts, a row for each target and a column for each prediction; of few classes.
        right, wrong: counts of predictions.
        pairs: [target, prediction, count] of the most frequent errors.
        pairs_left_out: number of other pairs.
        not_finite: number of predictions, or residuals, that are not finite; not in other counts.
        calibration: of the confidence.
        labels: [label, true positives, false positives, false negatives, true negatives] of the
            labels with the most errors, if a sample has several.
        labels_left_out: number of other labels.
        residuals: None without residuals.
        points: [target, prediction] of some samples.
        samples: those that `worst` and `confident` list, by their indices here.
        worst: the samples with the largest losses, from the largest on.
        confident: the samples with the most confident errors, from the most confident on.
    """

    set: Text
    loss: Text
    kind: Literal["classes", "labels", "numbers", "none"]
    why: NotRequired[Text]
    is_stream: NotRequired[bool]
    limit_batches: NotRequired[Size | None]
    n_samples: NotRequired[Size]
    n_elements: NotRequired[Size]
    classes: NotRequired[Size]
    class_names: NotRequired[dict[str, Text]]
    matrix: NotRequired[_Matrix]
    right: NotRequired[Size]
    wrong: NotRequired[Size]
    pairs: NotRequired[list[Annotated[list[_Whole], Field(min_length=3, max_length=3)]]]
    pairs_left_out: NotRequired[Size]
    not_finite: NotRequired[Size]
    calibration: NotRequired[Calibration]
    labels: NotRequired[list[Annotated[list[Size], Field(min_length=5, max_length=5)]]]
    labels_left_out: NotRequired[Size]
    residuals: NotRequired[Residuals | None]
    points: NotRequired[list[_Point]]
    samples: NotRequired[list[SamplePrediction]]
    worst: NotRequired[list[Size]]
    confident: NotRequired[list[Size]]


@with_config(_OPEN)
class EvaluationPredictions(TypedDict):
    """The predictions of one evaluation.

    Attributes:
        step: the step that was evaluated.
        is_newest: it is the newest evaluation that was collected.
        is_best: it is the best so far, by `validation.metric`.
        measured: the weights, or their average.
        sets: by validation set and loss.
        left_out: what is not in the file, to limit its size; one sentence each.
    """

    step: Count
    is_newest: bool
    is_best: bool
    measured: Literal["weights", "average"]
    sets: list[Annotated[SetPredictions, AfterValidator(_check_listed)]]
    left_out: list[Text]


@with_config(_OPEN)
class RunPredictions(TypedDict):
    """The content of the file: at most two evaluations, the newest first.

    Attributes:
        format: of the file.
        evaluations: the newest, and the best if that is a different one.
    """

    format: Annotated[Size, AfterValidator(partial(check_version, newest=PREDICTIONS_FORMAT))]
    evaluations: list[EvaluationPredictions]


_SCHEMA: TypeAdapter[Any] = TypeAdapter(RunPredictions)


def write_predictions(folder: Path, evaluations: list[dict[str, Any]]) -> None:
    """Replace the predictions of a run.

    Args:
        folder: of the run.
        evaluations: each as EvaluationPredictions.

    Raises:
        RunError: the disk is full or not writable.
    """
    path = folder / NAME
    content = {"format": PREDICTIONS_FORMAT, "evaluations": evaluations}
    with explain_write_errors(path), replace_file(path) as temporary:
        temporary.write_text(dumps(content) + "\n", encoding="utf-8")


def read_predictions(folder: Path) -> RunPredictions | None:
    """Read the predictions of a run, which anyone may have written; None if it has none.

    Raises:
        RunError: the file is of a newer surestep, or does not fit the schema.
    """
    path = folder / NAME
    try:
        found: RunPredictions = validate(_SCHEMA, parse_json(read_regular(path, _MOST_READ)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise unreadable_error(path, error, _HINT) from error
    return found
