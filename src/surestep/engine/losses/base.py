"""What a loss is to the engine, and what every loss of the table can say of itself."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from surestep.engine.batch import batch_size_of

LossFunction = Callable[..., Tensor | Mapping[str, Tensor]]
Squash = Literal["softmax", "sigmoid"]
IGNORED = -100
HALF = (torch.bfloat16, torch.float16)


class FirstBatch(NamedTuple):
    """The first batch, for a loss to look at.

    Attributes:
        outputs: what the model returned.
        targets: what they are compared with.
        inputs: tensors the model was given.
        squashed: the operation that the outputs came out of, where it is one of these.
    """

    outputs: Any
    targets: Any
    inputs: tuple[Tensor, ...] = ()
    squashed: Squash | None = None


def _as_they_are(outputs: Any) -> Any:
    return outputs


@dataclass(frozen=True)
class Loss:
    """A loss with its denominator.

    Attributes:
        value: `value(outputs, targets)`: a sum over items where `is_sum`, else a mean.
        items: what the mean is over, of one batch: `items(batch, targets)`.
        count: what a metric's mean is over: samples, or targets that are not ignored.
        kind: what the start-up checks may expect of outputs and targets.
        divides: False for a loss that its user declared a sum: nothing is divided.
        predictions: what metrics see of the model's outputs.
        called: its name, for people.
        divides_by: what its mean is over, for people.
        check: looks at the first batch.
        classes: how many classes the outputs choose among, where guessing evenly is a start.
        module: what has tensors to be moved to the device.
        is_separable: False where it compares the samples of a batch with each other.
        in_fp32: `value`, added up in fp32: used where `value` returns a sum in 16 bits.
        teacher: a frozen model; the loss is then given `(targets, what the teacher returns)`.
        parts: of several losses, each with its own denominator; then `value` is not asked.
    """

    value: LossFunction
    is_sum: bool
    items: Callable[[Any, Any], float]
    count: Callable[[Any], int]
    kind: Literal[
        "classes",
        "elementwise",
        "torch",
        "table",
        "other",
        "model",
        "in training",
        "several",
        "none",
    ]
    divides: bool = True
    predictions: Callable[[Any], Any] = _as_they_are
    label: str = "a function"
    divides_by: str = "samples"
    check: Callable[[FirstBatch], None] | None = None
    classes: Callable[[Tensor], int] | None = None
    module: nn.Module | None = None
    is_separable: bool = True
    in_fp32: Callable[[Any, Any], Tensor] | None = None
    teacher: nn.Module | None = None
    components: tuple["WeightedLoss", ...] = ()

    @property
    def is_in_training_only(self) -> bool:
        """Whether the model computes it in train mode, and nothing in eval mode."""
        return self.kind == "in training"

    def total(
        self, outputs: Any, targets: Any, items: float
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the loss of a micro-batch as a sum over `items`, and its named parts likewise."""
        value = self.value(outputs, targets)
        return self.to_sum(self.widened(value, outputs, targets), items)

    def widened(self, value: Any, outputs: Any, targets: Any) -> Any:
        """Return what `value` returned, computed again in fp32 where it was added up in 16 bits."""
        if self.in_fp32 is None or not isinstance(value, Tensor) or value.dtype not in HALF:
            return value
        return self.in_fp32(outputs, targets)

    def for_model(self, model: nn.Module) -> "Loss":
        """Return the loss that adds up in fp32 at once, where the model has 16-bit parameters."""
        if self.components:
            parts = (replace(each, loss=each.loss.for_model(model)) for each in self.components)
            return replace(self, components=tuple(parts))
        if self.in_fp32 is None or all(each.dtype not in HALF for each in model.parameters()):
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

    def to(self, device: torch.device) -> None:
        """Move class weights and the teacher to the device; the teacher goes to eval mode."""
        if self.module is not None:
            self.module.to(device)
        if self.teacher is not None:
            self.teacher.to(device).eval()

    def with_teacher_outputs(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], targets: Any
    ) -> Any:
        """Return the targets and what the teacher says to the same inputs."""
        assert self.teacher is not None
        with torch.no_grad():
            return targets, self.teacher(*args, **kwargs)


@dataclass(frozen=True)
class WeightedLoss:
    """One of several losses, of the outputs and targets that are called as it is."""

    name: str
    loss: Loss
    weight: float


class LossDoc(NamedTuple):
    """A row of the guide: what a loss is for and what it takes."""

    task: str
    outputs: str
    targets: str
    formula: str
    divides_by: str
    source: str


class LossModule(nn.Module):
    """A loss of the table. Called, it returns its mean; a step adds up its `total`.

    Attributes:
        name: what it is called in the table.
        doc: what it is for and what it takes.
        is_separable: False where it compares the samples of a batch with each other.
    """

    name: ClassVar[str]
    doc: ClassVar[LossDoc]
    is_separable: bool = True

    def __init__(self, **options: Any) -> None:
        super().__init__()
        own = inspect.signature(type(self)).parameters  # of those of a loss it is made from, fewer
        self.options = {name: value for name, value in options.items() if name in own}

    def __repr__(self) -> str:
        said = (f"{name}={value!r}" for name, value in self.options.items() if value is not None)
        return f"{self.name}({', '.join(said)})"

    def total(self, outputs: Any, targets: Any) -> Tensor | Mapping[str, Tensor]:
        """Return the sum over items, (), or its named parts."""
        raise NotImplementedError

    def items(self, batch: Any, targets: Any) -> float:
        """Count what the mean is over: samples, where a loss says nothing else."""
        return batch_size_of(batch if targets is None else targets)

    def count(self, targets: Any) -> int:
        """Count what a metric's mean is over."""
        return batch_size_of(targets)

    def check(self, first: FirstBatch) -> None:
        """Say in words where outputs and targets are not what the loss takes.

        Raises:
            TaskError, DataError: they are not.
        """

    @property
    def needs_targets(self) -> bool:
        """Whether something is to be computed from the training data before the run."""
        return False

    def fit(self, targets: Iterable[Any]) -> None:
        """Compute it, from the targets of batch after batch."""

    def describe_fit(self) -> str:
        """Say what was computed."""
        return ""

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        """Return the mean over items, ()."""
        value = self.total(outputs, targets)
        if not isinstance(value, Tensor):
            value = cast(Tensor, sum(value.values()))
        return value / self.items(outputs, targets)


def at_least_fp32(value: Tensor) -> Tensor:
    """Return half precision as fp32: a sum over many items needs the digits."""
    return value.float() if value.dtype in HALF else value


def added_up(
    function: Callable[..., Tensor], outputs: Tensor, *given: Any, **options: Any
) -> Tensor:
    """Return one of torch's losses summed over its items; of 16-bit outputs the sum is in fp32.

    Each item is computed in 16 bits there, as torch's mean has it, and so are the gradients.
    """
    if outputs.dtype not in HALF or torch.is_autocast_enabled(outputs.device.type):
        return function(outputs, *given, reduction="sum", **options)
    return function(outputs, *given, reduction="none", **options).sum(dtype=torch.float32)
