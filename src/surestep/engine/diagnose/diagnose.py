"""Find the operation, the module and the samples that make a step non-finite, in one process."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from surestep.engine.batch import Batch, flatten_tensors
from surestep.engine.diagnose.bisect import BisectResult, CannotSplitBatchError, find_samples
from surestep.engine.diagnose.module_tracker import ModuleTracker, OutputFingerprint
from surestep.engine.diagnose.nonfinite_tracker import (
    NonFiniteCause,
    NonFiniteTracker,
    has_nonfinite,
)
from surestep.engine.diagnose.preserve_step import preserve_state
from surestep.engine.diagnose.step_history import StepHistory
from surestep.engine.distributed.shards import to_local
from surestep.engine.state.average import BATCH_NORM
from surestep.engine.step.train_step import StepContext, forward_backward

_LARGEST = 3  # weights that are reported
_LISTED = 8  # samples that are named


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a step that was not finite.

    Attributes:
        loss: of the step taken again, a mean over its items.
        bad: what was not finite then: "loss", and names of parameters.
        cause: the first non-finite value; None if no operation was seen to make it.
        samples: those that make the step non-finite on their own.
        weights: the largest absolute values of parameters, by name, largest first.
        outputs: a fingerprint of what the modules returned.
    """

    loss: float
    bad: tuple[str, ...]
    cause: NonFiniteCause | None
    samples: BisectResult
    weights: dict[str, float]
    outputs: str | None = None

    @property
    def reproduced(self) -> bool:
        """Whether the step was not finite again."""
        return bool(self.bad)


def diagnose(context: StepContext, batch: Batch, *, index: Tensor | range | None) -> Diagnosis:
    """Take the step again, and follow what is not finite to where it began.

    Weights, buffers, gradients, modes and generators are restored. It takes as long as some dozens
    of steps, and reads the device after each operation.

    Args:
        context: with the state before the step.
        batch: of the step, on the device, as it was read.
        index: of the sample at each position of the epoch; None if there is none.
    """
    if context.transform is not None:
        batch = context.transform.preview(batch, context.state.progress.step)
    divisor = batch.items if context.loss.divides else 1.0
    if context.state.unfreezing is not None:
        context.state.unfreezing.apply(context.state.progress.steps_taken)
    outputs = OutputFingerprint()
    loss, bad, cause = _follow(context, batch, divisor, outputs)
    samples = BisectResult(how="the repeated step is finite", known=False, of=batch.samples)
    if bad:
        samples = _search(context, batch, divisor, index)
    return Diagnosis(loss, bad, cause, samples, _largest_weights(context), outputs.value)


def _follow(
    context: StepContext, batch: Batch, divisor: float, outputs: OutputFingerprint
) -> tuple[float, tuple[str, ...], NonFiniteCause | None]:
    """Return the loss, what is not finite, and the first cause.

    Each micro-batch runs alone, and if each is finite all of them together; a custom step takes the
    whole batch.
    """
    is_split = context.custom_update is None and len(batch.micro_batches) > 1
    with preserve_state(context):
        results = [
            _watch(context, batch._replace(micro_batches=(micro,)), divisor, outputs)
            for micro in batch.micro_batches
            if is_split and micro.items
        ]
        if not any(bad for _, bad, _ in results):
            results = [_watch(context, batch, divisor, outputs)]
    bad = dict.fromkeys(name or "loss" for _, names, _ in results for name in names)
    cause = next((cause for _, _, cause in results if cause is not None), None)
    return sum(loss for loss, _, _ in results), tuple(bad), cause


def _watch(
    context: StepContext, batch: Batch, divisor: float, outputs: OutputFingerprint
) -> tuple[float, list[str], NonFiniteCause | None]:
    """Take a step; return its share of the loss, what is not finite, and the first cause."""
    model = context.state.model
    modules = ModuleTracker({module: name for name, module in model.named_modules()}, outputs)
    tracker = NonFiniteTracker(modules, _tensors_before(context, batch))
    with modules.track(), tracker:
        loss_sum, bad = _rerun_step(context, batch, divisor)
    causes = [tracker.cause_of(tensor) for tensor in bad.values()]
    known = [cause for cause in causes if cause is not None]
    first = min(known, key=lambda cause: cause.order, default=None)
    return float(loss_sum) / divisor, list(bad), first


def _tensors_before(context: StepContext, batch: Batch) -> dict[tuple[str, str], Tensor]:
    """Return the tensors that a step gets, by (phase, name)."""
    found: dict[tuple[str, str], Tensor] = {}
    for micro in batch.micro_batches:
        content: Mapping[str, Any] = {
            **{f"input {number}": arg for number, arg in enumerate(micro.args)},
            **{f"input {name!r}": kwarg for name, kwarg in micro.kwargs.items()},
            "the targets": micro.targets,
        }
        for name, value in content.items():
            for count, tensor in enumerate(flatten_tensors(value)):
                found["batch", f"{name}, tensor {count}" if count else name] = tensor
    model = context.state.model
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found["weights", name] = to_local(tensor.detach())
    return found


def _rerun_step(
    context: StepContext, batch: Batch, divisor: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Take a step on a batch that is on the device and transformed, up to its gradients.

    Return the loss summed over its items, (), and what is not finite by name; "" is the loss. A
    step that updates by itself is taken as a whole; see `preserve_state`.
    """
    if context.custom_update is None:
        loss_sum = forward_backward(context, batch, divisor).loss_sum
        names = {id(parameter): name for name, parameter in context.state.model.named_parameters()}
        parameters = context.strategy.parameters
        seen = {
            names[id(parameter)]: parameter.grad
            for parameter in parameters
            if parameter.grad is not None
        }
        seen = {"": loss_sum, **seen}
    else:
        update = context.custom_update(context, batch, divisor)
        assert update.loss_sum is not None
        loss_sum, seen = update.loss_sum, {"": update.loss_sum}
        if update.norms is not None:
            seen["gradients"] = update.norms.total
    return loss_sum, {name: tensor for name, tensor in seen.items() if has_nonfinite(tensor)}


def _search(
    context: StepContext, batch: Batch, divisor: float, index: Tensor | range | None
) -> BisectResult:
    def is_bad(part: Batch) -> bool:
        try:
            with preserve_state(context):
                return bool(_rerun_step(context, part, divisor)[1])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            first = str(error).partition("\n")[0]
            raise CannotSplitBatchError(f"a step on a part of it fails ({first})") from error

    training = {module for module, mode in context.train_modes.wanted if mode}
    has_batch_statistics = any(
        isinstance(module, BATCH_NORM) and (module in training or not module.track_running_stats)
        for module in context.state.model.modules()
    )
    independent = not has_batch_statistics
    return find_samples(batch, context.loss, is_bad, independent=independent, index=index)


def _largest_weights(context: StepContext) -> dict[str, float]:
    """Return the largest absolute values of parameters."""
    named = context.state.model.named_parameters()
    local = {name: to_local(parameter.detach()) for name, parameter in named}
    largest = {name: float(value.abs().max()) for name, value in local.items() if value.numel()}
    ranked = sorted(largest.items(), key=lambda item: -item[1])
    return dict(ranked[:_LARGEST])


def describe_diagnosis(diagnosis: Diagnosis, history: StepHistory | None = None) -> str:
    """Return a few sentences; with the steps before if no sample in particular is the cause."""
    if not diagnosis.reproduced:
        return (
            "Repeated from the same state, the step is finite, so the cause is not known. "
            "Something in the step is not restored with the state, such as a generator of the data."
        )
    if diagnosis.cause is None:
        first = "The operation that caused it is not known: torch reports no non-finite value."
    else:
        first = diagnosis.cause.describe()
    before = "" if history is None or diagnosis.samples.is_specific else history.describe()
    return f"{first} {describe_samples(diagnosis)} {before}".strip()


def describe_samples(diagnosis: Diagnosis) -> str:
    """Return a sentence that names the samples, or says why none is named."""
    found = diagnosis.samples
    largest = ", ".join(f"{name} {value:.3g}" for name, value in diagnosis.weights.items())
    more = "" if found.known else ", and there may be more"
    if found.is_specific:
        names = [
            f"at position {sample.position}"
            if sample.index is None
            else f"{sample.index} (position {sample.position})"
            for sample in found.samples[:_LISTED]
        ]
        rest = len(found.samples) - _LISTED
        listed = ", ".join(names) + (f" and {rest} more" if rest > 0 else "")
        noun = "Sample" if len(found.samples) == 1 else "Samples"
        return f"{noun} {listed} caused it: {found.how}{more}."
    if found.samples:
        share = f"{len(found.samples)} of its {found.of} samples"
        return (
            f"Single samples are probably not the cause: {share} are not finite alone{more}. The "
            f"largest weights: {largest}."
        )
    if not found.known:
        return f"It is not known which samples caused it: {found.how}."
    return f"No single sample caused it: {found.how}. The largest weights: {largest}."
