"""What a loss is to the engine, and the base class of surestep's own losses."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from surestep.base.errors import DataError, NoTargetsError, TaskError
from surestep.base.warn import place_of
from surestep.engine.batch import MicroBatch, batch_size_of, explain_targets
from surestep.engine.device import place
from surestep.engine.losses.follow import LossOptions

LossFunction = Callable[..., Tensor | Mapping[str, Tensor]]
Squash = Literal["softmax", "sigmoid"]
IGNORED = -100
HALF = (torch.bfloat16, torch.float16)


class FirstBatch(NamedTuple):
    """The first batch, as a loss checks it.

    Attributes:
        outputs: what the model returned.
        targets: what they are compared with.
        inputs: tensors that the model was given.
        squashed: the last operation on the outputs, if it is one of these.
    """

    outputs: Any
    targets: Any
    inputs: tuple[Tensor, ...] = ()
    squashed: Squash | None = None


@dataclass(frozen=True)
class Loss:
    """A loss with its denominator.

    Attributes:
        value: `value(outputs, targets)`: a sum over items if `is_sum`, else a mean.
        items: what the mean is over, for one batch: `items(batch, targets)`.
        count: what a metric's mean is over: samples, or targets that are not ignored.
        kind: who declares the denominator: the loss (of classes or another known one), the Task.
        divides: False for a loss that the user declared a sum: nothing is divided.
        predictions: what metrics get of the model's outputs.
        label: its name, for messages.
        divides_by: what its mean is over, for messages.
        check: checks the first batch.
        class_dim: dimension of the outputs that has the classes; None if there are none.
        module: what has tensors to move to the device.
        is_separable: False if it compares the samples of a batch with each other.
        in_fp32: `value`, summed in fp32; used if `value` returns a sum in 16 bits.
        teacher: a frozen model, whose outputs the loss gets beside the targets.
        components: several losses, each with its own denominator; then `value` is not called.
        counts_samples: its items, unless `components` have theirs, and its `count` are samples.
        options: follows the options of the user's module; None if there is no copy of it.
    """

    value: LossFunction
    is_sum: bool
    items: Callable[[Any, Any], float]
    count: Callable[[Any], int]
    kind: Literal["classes", "known", "other", "model", "in training", "several", "none"]
    divides: bool = True
    predictions: Callable[[Any], Any] = lambda outputs: outputs
    label: str = "a function"
    divides_by: str = "samples"
    check: Callable[[FirstBatch], None] | None = None
    class_dim: int | None = None
    module: nn.Module | None = None
    is_separable: bool = True
    in_fp32: Callable[[Any, Any], Tensor] | None = None
    teacher: nn.Module | None = None
    components: tuple["WeightedLoss", ...] = ()
    counts_samples: bool = False
    options: LossOptions | None = None

    @property
    def is_in_training_only(self) -> bool:
        """Whether the model computes it in train mode, and nothing in eval mode."""
        return self.kind == "in training"

    def count_items(self, batch: Any, targets: Any, samples: int) -> float:
        """Return the items of a micro-batch of so many samples."""
        if self.counts_samples:
            return samples
        try:
            return self.items(batch, targets)
        except AttributeError as error:
            if isinstance(targets, Tensor) or place_of(error):  # in a function of the user's
                raise
            kind = NoTargetsError if targets is None else DataError
            raise kind(explain_targets(targets, self.label)) from error

    def total(
        self, outputs: Any, targets: Any, items: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of a micro-batch as a sum over `items`, and its named parts likewise."""
        value = self.value(outputs, targets)
        return self.to_sum(self.widen(value, outputs, targets), items)

    def widen(self, value: Any, outputs: Any, targets: Any) -> Any:
        """Return what `value` returned, computed again if it was summed in 16 bits."""
        if self.in_fp32 is None or not isinstance(value, Tensor) or value.dtype not in HALF:
            return value
        return self.in_fp32(outputs, targets)

    def for_model(self, model: nn.Module) -> "Loss":
        """Return the loss that sums in fp32 at once if the model has 16-bit parameters."""
        if self.components:
            parts = (replace(part, loss=part.loss.for_model(model)) for part in self.components)
            return replace(self, components=tuple(parts))
        if self.in_fp32 is None or all(weight.dtype not in HALF for weight in model.parameters()):
            return self
        return replace(self, value=self.in_fp32)

    def to_sum(
        self, value: Tensor | Mapping[str, Tensor], items: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Turn what the callable returned into a sum over `items`, and its named parts likewise.

        A loss that returns a mapping of named parts is their sum.
        """
        if isinstance(value, Tensor):
            wide = at_least_fp32(value)
            return wide if self.is_sum else wide * items, {}
        scale = 1.0 if self.is_sum else items
        parts = {name: at_least_fp32(part) * scale for name, part in value.items()}
        return cast(Tensor, sum(parts.values())), parts

    def find_class_dim(self, outputs: Any) -> int | None:
        """Return the dimension of outputs that has scores of classes; None if they are others."""
        is_scores = isinstance(outputs, Tensor) and outputs.is_floating_point()
        return self.class_dim if is_scores and outputs.dim() > 1 else None

    def to(self, device: torch.device) -> None:
        """Move class weights and the teacher to the device; the teacher goes to eval mode."""
        if self.module is not None:
            for part in self.module.modules():
                for name, buffer in part.named_buffers(recurse=False):
                    if buffer.dtype is torch.float64:
                        setattr(part, name, place(buffer, device))
            self.module.to(device)
        if self.teacher is not None:
            self.teacher.to(device).eval()

    def targets_of(self, micro: MicroBatch) -> Any:
        """Return the targets that the loss gets, with the outputs of its teacher if it has one."""
        if self.teacher is None:
            return micro.targets
        with torch.no_grad():
            return micro.targets, self.teacher(*micro.args, **micro.kwargs)


@dataclass(frozen=True)
class WeightedLoss:
    """One of several losses, of the outputs and targets of its name."""

    name: str
    loss: Loss
    weight: float


def describe_shape(value: Any) -> str:
    """Return what a model or a batch gives, for messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if not isinstance(value, (tuple, list)):
        return f"a {type(value).__name__}"
    members = ", ".join(map(describe_shape, value[:4]))
    return f"a {type(value).__name__} of {len(value)} ({members})"


class LossDoc(NamedTuple):
    """A row of the table of losses: what it is for and what it takes."""

    task: str
    outputs: str
    targets: str
    formula: str
    divides_by: str
    source: str


class LossModule(nn.Module):
    """Base class of losses with a denominator: override `total`, and what else differs.

    Called, it returns its mean; a training step adds up its `total`. The options of surestep's own
    losses are fields of a dataclass; another subclass passes them to `__init__`.

    Args:
        options: its options by name, as messages show them.

    Attributes:
        name: its name in the table.
        doc: its row in the table.
        over: what the mean is over: samples, elements of the targets, or targets that are not
            `ignore_index` ("kept").
        above_zero: options that are above 0, each with what to use instead of other values.
        is_separable: False if it compares the samples of a batch with each other.

    Raises:
        TaskError: an option is out of its range.
    """

    name: ClassVar[str]
    doc: ClassVar[LossDoc]
    over: ClassVar[Literal["samples", "elements", "kept"]] = "samples"
    above_zero: ClassVar[Mapping[str, str]] = {}
    is_separable: bool = True
    ignore_index: int | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def __post_init__(self) -> None:
        own = [field.name for field in fields(cast(Any, self)) if field.init]
        LossModule.__init__(self, **{name: getattr(self, name) for name in own})
        for name, fix in self.above_zero.items():
            if self.options[name] <= 0:
                raise TaskError(f"{name}={self.options[name]} is not above 0. {fix}")
        check_fraction(self.options.get("label_smoothing", 0.0), "label_smoothing")
        if self.options.get("class_dim", 1) not in (1, -1):
            raise TaskError(
                f"class_dim={self.options['class_dim']} is not supported. Use 1 for outputs "
                "(samples, classes, ...), or -1 for outputs (samples, ..., classes)."
            )

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.options.items() if value is not None)
        return f"{self.name}({', '.join(shown)})"

    def total(self, outputs: Any, targets: Any) -> Tensor | Mapping[str, Tensor]:
        """Return the sum over items, (), or its named parts, on the device.

        Args:
            outputs: what the model returned for a micro-batch.
            targets: its targets.
        """
        raise NotImplementedError

    def labels(self, targets: Any) -> Any:
        """Return the part of the targets that is counted.

        Args:
            targets: the targets of a batch.
        """
        return targets

    def items(self, batch: Any, targets: Any) -> float:
        """Return what the mean is divided by: a number of items, or the sum of their weights.

        A step calls it with tensors on the host, before they are moved to the device.

        Args:
            batch: a micro-batch as it was read; it is used only if `targets` is None.
            targets: its targets.
        """
        if self.over == "samples":
            return batch_size_of(batch if targets is None else targets)
        if self.over == "elements" or self.ignore_index is None:
            return int(self.labels(targets).numel())
        return int((self.labels(targets) != self.ignore_index).sum())

    def count(self, targets: Any) -> int:
        """Return what a metric's mean is over: number of samples, or of targets not ignored.

        Args:
            targets: the targets of a micro-batch. Counting those that are not ignored on a device
                waits for it.
        """
        if self.over != "kept" or self.ignore_index is None:
            return batch_size_of(targets)
        return int((self.labels(targets) != self.ignore_index).sum())

    def check(self, first: FirstBatch) -> None:
        """Check that the first batch is what the loss takes.

        Args:
            first: outputs, targets and inputs of the first batch.

        Raises:
            TaskError, DataError: it is not.
        """

    def shape_error(self, first: FirstBatch, hint: str) -> TaskError:
        """Return the error for outputs and targets of shapes that the loss does not take.

        Args:
            first: the first batch.
            hint: a sentence that says what to change.
        """
        return TaskError(
            f"The model returns {describe_shape(first.outputs)}, and the targets are "
            f"{describe_shape(first.targets)}. {self.name} takes outputs: {self.doc.outputs}; "
            f"targets: {self.doc.targets}. {hint}"
        )

    @property
    def ignores_targets(self) -> bool:
        """Whether targets of the value `ignore_index` are left out of the mean."""
        return self.over == "kept" and self.ignore_index is not None

    @property
    def needs_targets(self) -> bool:
        """Whether `fit` is to be called with the training targets before the run."""
        return False

    def fit(self, targets: Iterable[Any]) -> str:
        """Compute options from the training targets, before the run.

        Args:
            targets: the training targets, batch by batch.

        Returns:
            The options as text, for the Plan.
        """
        raise NotImplementedError

    def check_fitted(self) -> None:
        """Check that the options are known that the training targets give.

        Raises:
            TaskError: they are not.
        """
        if self.needs_targets:
            raise TaskError(
                f"{self!r} is not fitted to the training targets. Task(loss=...) fits a copy of "
                "it; to call the loss yourself, first call loss.fit([targets]) with all of them."
            )

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        """Return the mean over items, ()."""
        self.check_fitted()
        value = self.total(outputs, targets)
        if not isinstance(value, Tensor):
            value = cast(Tensor, sum(value.values()))
        return value / self.items(outputs, targets)


def check_fraction(value: float, name: str) -> None:
    """Check that an option is a share between 0 and 1."""
    if not 0 <= value <= 1:
        raise TaskError(f"{name}={value} is not a share. Use a number from 0 to 1.")


def at_least_fp32(value: Tensor) -> Tensor:
    """Return half precision as fp32: a sum over many items needs the digits."""
    return value.float() if value.dtype in HALF else value


def sum_in_fp32(
    function: Callable[..., Tensor], outputs: Tensor, *args: Any, **options: Any
) -> Tensor:
    """Return one of torch's losses summed over its items, in fp32 for 16-bit outputs.

    Each item is then computed in 16 bits, as in torch's mean, and so are the gradients.
    """
    if outputs.dtype not in HALF or torch.is_autocast_enabled(outputs.device.type):
        return function(outputs, *args, reduction="sum", **options)
    return function(outputs, *args, reduction="none", **options).sum(dtype=torch.float32)


def never_called(outputs: Any, targets: Any) -> Tensor:
    """Fill `Loss.value` for a loss without a value."""
    raise AssertionError("the kind of this loss is checked before its value")
