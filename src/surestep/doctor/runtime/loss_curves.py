"""The losses of a script that trains one model: of its steps, and of its evaluations."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import NOWHERE, Location
from surestep.doctor.runtime.series import Series
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from surestep.doctor.curves.curve import Curve, Evaluations
    from surestep.doctor.curves.state import CurveState

LOSSES = "losses"  # the name of the recorder among the rules
MEAN_LOSSES = (  # functions that compare a prediction with a target, by a mean as the default
    *("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
)
_MOST_STEPS = 256  # whose losses are kept
_MOST_EVALUATIONS = 128
_MOST_SPLITS = 4
_FEWEST_PREDICTIONS = 100  # of which the share of correct ones is known
_WITH_LOADER = 0.9  # of the steps
_LATE = 10  # steps, after which a new optimizer is that of another training
_BINARY = "binary_cross_entropy_with_logits"


@dataclass(frozen=True)
class WatchedCurve:
    """The curve of a script.

    Attributes:
        curve: its losses, with the evaluations on one DataLoader.
        location: of the backward pass.
        evaluated_at: the line of the loss of the evaluations; NOWHERE without any.
    """

    curve: Curve
    location: Location
    evaluated_at: Location = NOWHERE


class CurveWatcher(Watcher):
    """A rule about the curve of a script; `run.losses` is there if there is such a rule."""

    def name_curves(self, run: Script) -> Iterator[tuple[WatchedCurve, CurveState]]:
        """Yield the states of the curves of a script."""
        from surestep.doctor.curves.name import name_curve

        for watched in [] if run.losses is None else run.losses.read_curves(run):
            for state in name_curve(watched.curve):
                yield watched, state


@dataclass
class _Split:
    """The evaluations on one dataset.

    Attributes:
        location: of the first loss.
        is_first: whether it is the first dataset that this line evaluates; a dataset that is made
            again for each evaluation is not evaluated for the first time.
        losses: means, by the step.
        accuracies: by the step, of evaluations with enough predictions.
        is_trained: whether a model is trained with it too.
        step: of the last evaluation.
        total: sum of its losses, until it is complete.
        samples: of that sum.
        hits: its correct predictions.
        predictions: that it has.
    """

    location: Location
    is_first: bool
    losses: Series[int] = field(default_factory=lambda: Series(_MOST_EVALUATIONS))
    accuracies: Series[int] = field(default_factory=lambda: Series(_MOST_EVALUATIONS))
    is_trained: bool = False
    step: int = -1
    total: Tensor | None = None
    samples: int = 0
    hits: Tensor | None = None
    predictions: int = 0

    def add(self, step: int, call: TorchCall) -> None:
        """Add the loss of a batch."""
        target = call["target"]
        if step != self.step:
            self.end()
            self.step, self.total, self.samples = step, call.result.new_zeros(()), 0
            self.hits, self.predictions = None, 0
        assert self.total is not None
        samples = len(target) if target.dim() else 1
        self.total.add_(call.result, alpha=samples)
        self.samples += samples
        if (hits := _count_hits(call)) is not None:
            self.hits = hits.float() if self.hits is None else self.hits.add_(hits)
            self.predictions += target.numel()

    def end(self) -> None:
        """Keep the mean loss of the last evaluation."""
        if self.total is not None and self.samples:
            self.losses.add(self.total / self.samples, self.step)
            if self.hits is not None and self.predictions >= _FEWEST_PREDICTIONS:
                self.accuracies.add(self.hits / self.predictions, self.step)
        self.total = None

    def read(self) -> Evaluations:
        """Return the losses and the accuracies of all evaluations."""
        from surestep.doctor.curves.curve import Evaluations, as_values

        self.end()
        by_step = {step: loss for loss, step in self.losses.read()}
        accuracies = {step: accuracy for accuracy, step in self.accuracies.read()}
        scores = as_values([accuracies.get(step, nan) for step in by_step])
        return Evaluations(
            as_values(list(by_step)),
            as_values(list(by_step.values())),
            {"accuracy": scores} if accuracies and self.is_first else {},
        )


class LossRecorder(Watcher):
    """Keeps losses that functions of torch compute; it is called before the rules.

    There is a curve if one optimizer steps on one loss, with batches of one dataset: the losses of
    a GAN, of reinforcement learning or of a curriculum rise and fall for other reasons.
    """

    FUNCTIONS = MEAN_LOSSES

    def __init__(self) -> None:
        self._series: Series[tuple[int, Any]] = Series(_MOST_STEPS)
        self._loss: Tensor | None = None  # of the last backward pass, until the step
        self._scaler: Callable[[], Any] = lambda: None
        self._newest: Callable[[], Any] = lambda: None  # the result of a function
        self._newest_classes: int | None = None
        self._called: list[str] = []  # functions since the last backward pass
        self._kinds: set[tuple[str, ...]] = set()  # the functions of each step
        self._classes: set[int | None] = set()
        self._lines: set[Location] = set()
        self._is_known = self._has_start = True
        self._optimizers = self._with_loader = 0
        self._newest_at = 0  # the steps before the first one of the newest optimizer
        self._loader: DataLoader[Any] | None = None  # that gave the last batch
        self._trained: set[int] = set()  # datasets, by their ids
        self._splits: dict[int, _Split] = {}  # by the ids of their datasets

    def on_optimizer(self, run: Script, optimizer: Optimizer) -> None:
        self._optimizers += 1
        self._newest_at = run.step

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        self._has_start = self._has_start and run.step > 0

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        self._loader = loader

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._loader = None

    def on_scale(self, run: Script, scaler: Any) -> None:
        self._scaler = weakref.ref(scaler)

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.result.requires_grad:
            if run.is_sampled:
                self._called.append(call.name)
                self._newest, self._newest_classes = weakref.ref(call.result), _count_classes(call)
        elif self._loader is not None and call["reduction"] == "mean" and not run.in_backward:
            self._add_evaluation(run, call, self._loader)

    def _add_evaluation(self, run: Script, call: TorchCall, loader: DataLoader[Any]) -> None:
        import torch

        key = id(loader.dataset)
        split = self._splits.get(key)
        if split is None:
            if len(self._splits) >= _MOST_SPLITS or key in self._trained:
                return
            location = run.locate()
            is_first = all(other.location != location for other in self._splits.values())
            split = self._splits[key] = _Split(location, is_first)
        with torch.inference_mode(False):  # what is made in that mode cannot be changed later
            split.add(run.step, call)

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        loss = losses[0]
        if len(losses) > 1 or loss.numel() > 1:
            self._is_known = False
            return
        scale = getattr(self._scaler(), "_scale", None)  # `get_scale()` would wait for the device
        self._loss = loss.detach() if scale is None else loss.detach() / scale
        if not run.is_sampled:
            return
        self._classes.add(self._newest_classes if self._newest() is loss else None)
        self._kinds.add(tuple(self._called))
        self._called.clear()
        if len(self._lines) < 2:
            self._lines.add(run.locate())

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        if self._loss is None:
            return
        self._series.add(self._loss, (run.step + 1, optimizer.param_groups[0]["lr"]))
        self._loss = None
        if self._loader is not None:
            self._with_loader += 1
            key = id(self._loader.dataset)
            if key not in self._trained and len(self._trained) < _MOST_SPLITS:
                self._trained.add(key)
                if key in self._splits:
                    self._splits[key].is_trained = True

    def read_curves(self, run: Script) -> list[WatchedCurve]:
        """Return the curve with the evaluations on each DataLoader; none if there is no curve."""
        from surestep.doctor.curves.curve import Evaluations

        seen = (self._lines, self._kinds, self._classes, self._trained)
        is_one = self._optimizers == 1 and all(len(values) == 1 for values in seen)
        is_one = is_one and () not in self._kinds
        if not (is_one and self._is_known and self._with_loader >= _WITH_LOADER * run.step):
            return []
        (location,) = self._lines
        splits = [split for split in self._splits.values() if not split.is_trained]
        found = [(split, split.read()) for split in splits]
        return [
            WatchedCurve(self._build(run, evaluations), location, split.location)
            for split, evaluations in found
            if len(evaluations.steps)
        ] or [WatchedCurve(self._build(run, Evaluations()), location)]

    def read_losses(self, run: Script) -> WatchedCurve | None:
        """Return the losses of the steps of all optimizers together.

        None without any, or if an optimizer took its first step later: one training after another
        may be a search of learning rates, up to those that diverge.
        """
        from surestep.doctor.curves.curve import Evaluations

        if not len(self._series) or self._newest_at > _LATE:
            return None
        location = min(self._lines, default=NOWHERE, key=lambda line: (line.file, line.line))
        return WatchedCurve(self._build(run, Evaluations()), location)

    def _build(self, run: Script, evaluations: Evaluations) -> Curve:
        from surestep.doctor.curves.curve import Curve, as_values

        losses, labels = zip(*self._series.read(), strict=True)
        steps, rates = zip(*labels, strict=True)
        return Curve(
            as_values(steps),
            as_values(losses),
            as_values(rates) if all(isinstance(rate, float) for rate in rates) else None,
            evaluations,
            classes=next(iter(self._classes), None),
            total_steps=run.step,
            has_start=self._has_start,
        )


def _count_classes(call: TorchCall) -> int | None:
    """Return the number of classes of a cross-entropy of indices, without weights."""
    is_weighted = any(call.arguments.get(name) is not None for name in ("weight", "pos_weight"))
    if is_weighted or call.arguments.get("label_smoothing"):
        return None
    if call.name == _BINARY:
        return 2
    is_of_indices = call.name == "cross_entropy" and not call["target"].is_floating_point()
    return (
        int(call["input"].shape[-1 if call["input"].dim() == 1 else 1]) if is_of_indices else None
    )


def _count_hits(call: TorchCall) -> Tensor | None:
    """Return the number of correct predictions; None if the loss is not of classes."""
    prediction: Tensor = call["input"].detach()
    target: Tensor = call["target"].detach()
    if call.name == _BINARY and prediction.shape == target.shape:
        return ((prediction > 0) == (target > 0.5)).sum()
    is_of_indices = call.name == "cross_entropy" and not target.is_floating_point()
    if is_of_indices and prediction.dim() == target.dim() + 1 and prediction.dim() > 1:
        return (prediction.argmax(1) == target).sum()
    return None
