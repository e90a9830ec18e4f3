"""Records what a classifier of two inputs predicts in their plane, at each evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from surestep.base.errors import ConfigError
from surestep.base.text import describe_value
from surestep.engine.data.batched import NoData
from surestep.engine.evaluate.sample_predictions import choose_classes, find_kind, why_not_shown
from surestep.engine.state.state import State
from surestep.engine.step.callback import Callback
from surestep.engine.step.part import Part
from surestep.engine.value import Metrics
from surestep.record import decision_regions as record
from surestep.record.decision_regions import MOST_CELLS, MOST_CLASSES, UNKNOWN, Ends

if TYPE_CHECKING:
    from surestep.record.run_writer import RunWriter
    from surestep.trainer.review.data_case import ReadSplit
    from surestep.trainer.session import Session

_LEAST_CELLS = 8
_READ_S = 0.5  # for reading samples of a dataset
_POINTS = 500  # of the training data, that are shown
_MARGIN = 0.08  # of the range of the points, beyond them
_DIGITS = 5  # of the coordinates of a point


class DecisionRegions(Callback):
    """Record the decision regions of a classifier of two inputs, for the report of the run.

    At each evaluation of all validation sets, the model predicts the class of each cell of a grid
    around the training data, in eval mode and with the weights that were evaluated. Nothing that
    the run computes changes. `surestep report` shows the regions with a slider, and
    `surestep report RUN --animate FILE` writes them as an animation.

    Args:
        cells: of the grid in each direction, from 8 to 256.

    Raises:
        ConfigError: `cells` is not such a number. When the run starts: the model does not choose
            among at most 64 classes by an input of two numbers, or the training data cannot be
            read before.

    Example:
        >>> import torch
        >>> import surestep
        >>> x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
        >>> y = (x[:, 0] > 0).long()
        >>> task = surestep.Task(torch.nn.Linear(2, 2), loss="multiclass", train=(x, y), val=(x, y))
        >>> config = surestep.Config(epochs=2, batch_size=16, logging={"progress": "quiet"})
        >>> callbacks = [surestep.DecisionRegions(cells=32)]
        >>> run = surestep.Trainer(task, config, run="runs/plane", callbacks=callbacks).fit()
        >>> [event["step"] for event in run.events() if event["event"] == "decision_regions"]
        [4, 8]
    """

    def __init__(self, *, cells: int = 96) -> None:
        if type(cells) is not int or not _LEAST_CELLS <= cells <= MOST_CELLS:
            raise ConfigError(
                f"DecisionRegions(cells={cells!r}): {describe_value(cells)} is not a number of "
                f"cells from {_LEAST_CELLS} to {MOST_CELLS}. Pass one, such as cells=96."
            )
        self.cells = cells


class RecordRegions(Part):
    """Writes the decision regions of each evaluation to the events.

    All ranks predict together; the first one writes.

    Args:
        session: has the evaluations.
        recorder: of the run folder.
        cells: of the grid in each direction.

    Raises:
        ConfigError: the model is not a classifier of two inputs.
    """

    def __init__(self, session: Session, recorder: RunWriter, cells: int) -> None:
        self._session, self._recorder, self._cells = session, recorder, cells
        self._plane = _find_plane(session)
        self._has_points = False

    def on_evaluate(self, state: State, metrics: Metrics) -> None:
        """Predict the cells with the weights that were evaluated, and write them."""
        evaluations, plane, cells = self._session.evaluations, self._plane, self._cells
        found = evaluations.predict_inputs(plane.make_grid(cells))
        outputs = torch.from_numpy(found["output"])
        classes, probability = choose_classes(self._session.loop.context.loss, outputs)
        if not self._has_points:  # of each process, since the data may differ on resume
            self._has_points = True
            self._recorder.event("decision_points", **plane.list_points())
        regions = record.DecisionRegions(
            state.progress.step,
            evaluations.collected,
            plane.x,
            plane.y,
            plane.n_classes,
            classes.where(classes >= 0, UNKNOWN).byte().reshape(cells, cells).numpy(),
            record.as_confidence(probability.reshape(cells, cells).numpy()),
        )
        self._recorder.event("decision_regions", **record.encode_regions(regions))


def open_callbacks(
    callbacks: Iterable[Callback], session: Session, recorder: RunWriter
) -> list[Callback]:
    """Return the callbacks, with a part that records for DecisionRegions.

    Args:
        callbacks: of the run.
        session: has the evaluations.
        recorder: of the run folder.

    Raises:
        ConfigError: there are several, or the model is not a classifier of two inputs.
    """
    callbacks = list(callbacks)
    number = sum(isinstance(one, DecisionRegions) for one in callbacks)
    if number > 1:
        raise ConfigError(
            f"{number} DecisionRegions are in the callbacks, and a run records one frame at each "
            "evaluation. Leave one of them."
        )
    return [
        RecordRegions(session, recorder, callback.cells)
        if isinstance(callback, DecisionRegions)
        else callback
        for callback in callbacks
    ]


@dataclass(frozen=True, eq=False)
class _Plane:
    """The plane of the two inputs, and samples of the training data in it.

    Attributes:
        points: (samples, 2), finite.
        labels: the class of each, (samples,); -1 if it has none.
        n_classes: among how many classes the model chooses.
        keyword: the argument of the model that takes the inputs; None if it is the first one.
    """

    points: Tensor
    labels: Tensor
    n_classes: int
    keyword: str | None

    @property
    def x(self) -> Ends:
        """The ends of the first input."""
        return _widen(self.points[:, 0])

    @property
    def y(self) -> Ends:
        """The ends of the second input."""
        return _widen(self.points[:, 1])

    def make_grid(self, cells: int) -> Any:
        """Return the centers of the cells, row by row from the upper left, as the model's data."""
        x, y = (
            low + (high - low) * (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
            for low, high in (self.x, self.y)
        )
        pairs = [x.repeat(cells), y.flip(0).repeat_interleave(cells)]
        grid = torch.stack(pairs, dim=1).to(self.points.dtype)
        return (grid,) if self.keyword is None else {self.keyword: grid}

    def list_points(self) -> dict[str, list[Any]]:
        """Return the fields of the event that has the points."""
        from surestep.trainer.review.data_case import spread_indices

        shown = spread_indices(len(self.points), _POINTS)
        x, y = ([_round(value) for value in row] for row in self.points[shown].T.tolist())
        return {"x": x, "y": y, "labels": self.labels[shown].tolist()}


def _widen(values: Tensor) -> Ends:
    """Return the ends of an axis that has some values, with a margin."""
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 1.0
    return low - margin, high + margin


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _find_plane(session: Session) -> _Plane:
    """Read samples of the training data.

    Raises:
        ConfigError: the model is not a classifier of two inputs, or the data cannot be read.
    """
    split = _read_training_data(session)
    if reason := _find_reason(session, split):
        raise ConfigError(
            "DecisionRegions draws what a classifier of two inputs predicts in their plane, and "
            f"{reason}. Leave it out of the callbacks."
        )
    signature, loss = session.loop.context.signature, session.loop.context.loss
    assert split is not None
    assert split.inputs is not None
    assert signature is not None
    is_labels = find_kind(loss) == "labels"
    n_classes = 2 if is_labels else signature["outputs"][0]["shape"][1]
    points = split.inputs[0]
    known = points.isfinite().all(1)
    labels = _read_labels(split, n_classes, is_labels=is_labels)
    return _Plane(points[known], labels[known], n_classes, _find_keyword(session))


def _read_training_data(session: Session) -> ReadSplit | None:
    """Return samples of the training data; None if reading them now could change what is drawn."""
    from surestep.trainer.review.data_case import read_split

    data = session.task.train
    if data is None or isinstance(data, NoData) or session.plan.data_randomness == "not exact":
        return None
    return read_split(data, "train", session.task, session.plan, _READ_S)


def _find_reason(session: Session, split: ReadSplit | None) -> str:
    """Return why there are no regions to draw; "" if there are some."""
    loss, signature = session.loop.context.loss, session.loop.context.signature
    if not session.task.val_sets():
        return "this Task has no validation set, so nothing is evaluated"
    if loss.components:
        return "the Task has several losses"
    if find_kind(loss) not in ("classes", "labels"):
        return why_not_shown(loss) or f"the loss {loss.label} predicts numbers, and no class"
    if split is None:
        return "the training data cannot be read before the first step without changing it"
    inputs = None if split.inputs is None or len(split.inputs) != 1 else split.inputs[0]
    if inputs is None or signature is None or len(signature["inputs"]) != 1:
        return "this model has other inputs than one tensor of two numbers for each sample"
    if inputs.shape[1:] != (2,) or not inputs.is_floating_point():
        shape = tuple(inputs.shape[1:])
        return f"an input of this model is a tensor of shape {shape} and dtype {inputs.dtype}"
    if not inputs.isfinite().all(1).any():
        return "no sample of the training data that was read is finite"
    shapes = [output["shape"] for output in signature["outputs"]]
    if find_kind(loss) == "labels":
        is_one = len(shapes) == 1 and shapes[0][1:] in ([], [1])
        return "" if is_one else "this model predicts several labels for a sample"
    if len(shapes) != 1 or len(shapes[0]) != 2:
        return "this model predicts more than one class for a sample"
    if shapes[0][1] > MOST_CLASSES:
        return (
            f"this model has {shapes[0][1]} classes, of which at most {MOST_CLASSES} have a color"
        )
    return ""


def _read_labels(split: ReadSplit, n_classes: int, *, is_labels: bool) -> Tensor:
    """Return the class of each sample; -1 if it has none, such as an ignored one."""
    values = split.values if is_labels else split.labels
    if values is None:
        return torch.full((len(split.rows),), -1)
    classes = (values >= 0.5).long() if is_labels else values.long()
    return classes.where((classes >= 0) & (classes < n_classes), -1)


def _find_keyword(session: Session) -> str | None:
    """Return the argument that takes the inputs, unless it is the first one of the model."""
    from surestep.engine.checks.model_signature import parameter_names

    signature = session.loop.context.signature
    assert signature is not None
    name = signature["inputs"][0]["name"]
    first = parameter_names(session.loop.state.model)[:1]
    return None if name in (*first, "input.0") else str(name)
