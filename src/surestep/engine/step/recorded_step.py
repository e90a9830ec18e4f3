"""A step whose work on the device is recorded and replayed.

Three graphs make a step: the first micro-batch, each later one, and what follows the backward pass:
clipping, the guard and the buffers to restore. Before each micro-batch the host copies its inputs
and seeds the generators. It then launches the fused kernel of the optimizer, since a kernel in a
graph can read a learning rate only from the device, in fp32 (docs/decisions/0071).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from surestep.base.errors import TaskError
from surestep.base.warn import place_of
from surestep.engine.batch import Batch, MicroBatch, flatten_tensors, map_tensors
from surestep.engine.device import ran_out
from surestep.engine.metrics import base as metrics
from surestep.engine.parallel.guards import DeviceGuard
from surestep.engine.step.train_step import StepContext, UpdateResult, add_gradients
from surestep.engine.step_outcome import GradNorm, Logged, StepOutcome
from surestep.engine.task.init_weights import summarize_names

Result = TypeVar("Result")
# What to do if a run has begun.
RESUME = (
    "Leave out cuda_graph: the run resumes from its last checkpoint, with bitwise the same numbers."
)


class Recorder(Protocol):
    """Records what functions launch on a device, and replays it: `CudaGraphs`."""

    def warm_up(self) -> AbstractContextManager[None]:
        """Run what follows as it is run when it is recorded."""
        ...

    def record(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Return what replays a function, and its result, which each replay overwrites."""
        ...


class Layout(NamedTuple):
    """What must be the same in all micro-batches that a graph takes.

    Attributes:
        tensors: shape, dtype and strides of each tensor.
        others: what is not a tensor, as text.
        items: of the micro-batch and of the global batch, if the recorded kernels contain them.
    """

    tensors: tuple[Any, ...]
    others: str
    items: tuple[Any, ...]


@dataclass
class RecordedStep:
    """The graphs of a step, and the tensors that they read and write.

    Attributes:
        micro_batch: has the tensors that inputs are copied to.
        layout: of the micro-batches that it takes.
        has_items: the recorded kernels contain the number of items.
        first: replays the first micro-batch of a step, and with it the copy of the buffers.
        later: replays each other one.
        finish: replays clipping, the guard, and restores the buffers of a bad step.
        loss: summed over the items, ().
        norms: of the gradients.
        flag: 0 if everything was finite, else NaN, ().
        nonfinite: the flag of the step before, which the guard reads.
        logged: what the first micro-batch logs, and what each later one does.
        grads: each parameter, and its gradient.
    """

    micro_batch: MicroBatch
    layout: Layout
    has_items: bool
    first: Callable[[], None]
    later: Callable[[], None]
    finish: Callable[[], None]
    loss: Tensor
    norms: GradNorm
    flag: Tensor
    nonfinite: Tensor
    logged: tuple[list[Logged], list[Logged]]
    grads: list[tuple[nn.Parameter, Tensor]]

    def compute_gradients(self, context: StepContext, batch: Batch, divisor: float) -> list[Logged]:
        """Replay the micro-batches; return what they log."""
        context.strategy.fill_loss_gradients(1 / divisor)
        logged: list[Logged] = []
        for parameter, grad in self.grads:
            parameter.grad = grad
        targets = flatten_tensors(_parts_of(self.micro_batch))
        for number, micro_batch in enumerate(batch.micro_batches):
            for target, value in zip(targets, flatten_tensors(_parts_of(micro_batch)), strict=True):
                target.copy_(value, non_blocking=True)
            step = context.state.progress.step
            context.randomness.seed_for("model", step, micro_batch.position)
            (self.later if number else self.first)()
            logged += _copy_logged(self.logged[min(number, 1)])
        return logged

    def update(self, context: StepContext, logged: list[Logged]) -> UpdateResult:
        """Clip, and step the optimizer unless something is not finite.

        Raises:
            TaskError: a callback replaced a gradient.
        """
        guard = context.strategy.guard
        assert isinstance(guard, DeviceGuard)
        if guard.nonfinite is not self.nonfinite:  # reset, or of a step without the graphs
            self.nonfinite.copy_(guard.nonfinite)
            guard.nonfinite = self.nonfinite
        for hook in context.on_backward:
            hook(context.state)
        if context.on_backward and any(p.grad is not grad for p, grad in self.grads):
            raise TaskError(
                "A callback's on_backward replaced a gradient, and cuda_graph=True clips the "
                "recorded ones. Change it in place: parameter.grad.mul_(0.5)."
            )
        self.finish()
        context.schedule.write(context.state.progress.steps_taken)
        guard.update()
        total, per_parameter, names = self.norms
        norms = GradNorm(total.clone(), per_parameter.clone(), names)
        return UpdateResult(StepOutcome(True, self.flag.clone()), norms, self.loss.clone(), logged)


def record_step(
    context: StepContext, batch: Batch, divisor: float, recorder: Recorder
) -> RecordedStep:
    """Record a step on the first micro-batch of a batch; it is not taken.

    Raises:
        TaskError: it cannot be recorded.
    """
    strategy, guard = context.strategy, context.strategy.guard
    assert isinstance(guard, DeviceGuard)
    check_host_work(context)
    original = batch.micro_batches[0]
    micro_batch = _copy_tensors(original)
    batch = batch._replace(micro_batches=(micro_batch,))
    _warm_up(context, batch, divisor, recorder)
    logged: tuple[list[Logged], list[Logged]] = ([], [])
    nonfinite = guard.nonfinite = guard.nonfinite.clone()

    def run_first() -> Tensor:
        if context.buffers.slots:
            context.buffers.save_tensors()
        return add_gradients(context, batch, micro_batch, divisor, logged[0]).clone()

    def run_later() -> None:
        loss.add_(add_gradients(context, batch, micro_batch, divisor, logged[1]))

    def finish() -> tuple[GradNorm, Tensor]:
        norms = strategy.clip_grad_norm()
        flag = guard.find_nonfinite(loss, norms.total)
        nonfinite.copy_(flag)
        if context.buffers.slots:
            context.buffers.restore(StepOutcome(True, flag))
        return norms, flag

    with _explain_errors(context):
        first, loss = recorder.record(run_first)
        grads = [(p, p.grad) for p in strategy.parameters if p.grad is not None]
        later, _ = recorder.record(run_later)
        finish_step, (norms, flag) = recorder.record(finish)
    has_items = not context.loss.is_sum or bool(context.loss.components or logged[0])
    layout = describe_layout(batch, original, divisor, has_items=has_items)
    outputs = (loss, norms, flag, nonfinite, logged, grads)
    return RecordedStep(micro_batch, layout, has_items, first, later, finish_step, *outputs)


def _warm_up(context: StepContext, batch: Batch, divisor: float, recorder: Recorder) -> None:
    """Run a micro-batch as it is recorded next, without changing anything.

    Raises:
        TaskError: it draws random numbers on the host, of which a graph would contain the first.
    """
    (micro_batch,) = batch.micro_batches
    step, randomness = context.state.progress.step, context.randomness
    randomness.seed_for("model", step, micro_batch.position)
    on_host = [own for own in randomness.generators if own.device.type != randomness.device.type]
    before = [own.get_state() for own in on_host]
    with recorder.warm_up(), preserve_buffers(context):
        clear_gradients(context)
        add_gradients(context, batch, micro_batch, divisor, [])
        clear_gradients(context)
    if any(not torch.equal(own.get_state(), old) for own, old in zip(on_host, before, strict=True)):
        raise TaskError(
            "The model or the loss draws random numbers on the host, and cuda_graph=True replays "
            "only what the GPU does. Draw them there: torch.rand(..., device=x.device). Or leave "
            "out cuda_graph."
        )


def check_host_work(context: StepContext) -> None:
    """Check that the host does nothing in a forward that a replay would leave out.

    Raises:
        TaskError: it draws from numpy's or Python's generators, or changes attributes or weights.
    """
    if context.generators.seeded:
        raise TaskError(
            "The model or the loss draws random numbers from numpy or Python's random, and "
            "cuda_graph=True replays only what the GPU does. Draw them with torch.rand(..., "
            "device=x.device), or leave out cuda_graph."
        )
    names = [slot[0] if isinstance(slot, tuple) else slot.path for slot in context.writes]
    if names:
        raise TaskError(
            f"The forward changes {summarize_names(names, 3)}, and cuda_graph=True replays only "
            "what the GPU does to gradients and buffers. Keep a counter in a buffer, as a tensor "
            "that the forward changes in place, or leave out cuda_graph."
        )


def describe_layout(
    batch: Batch, micro_batch: MicroBatch, divisor: float, *, has_items: bool
) -> Layout:
    """Return what must be the same in all micro-batches that a graph takes."""
    parts = _parts_of(micro_batch)
    tensors = tuple((tuple(x.shape), x.dtype, x.stride()) for x in flatten_tensors(parts))
    items = (micro_batch.items, divisor, micro_batch.part_items, batch.part_items)
    return Layout(tensors, repr(map_tensors(parts, _hide)), items if has_items else ())


def check_layouts(
    recorded: RecordedStep, context: StepContext, batch: Batch, divisor: float
) -> None:
    """Check that a step can take all micro-batches of a batch.

    Raises:
        TaskError: it cannot.
    """
    for micro_batch in batch.micro_batches:
        layout = describe_layout(batch, micro_batch, divisor, has_items=recorded.has_items)
        if layout == recorded.layout:
            continue
        known = recorded.layout
        what = f"tensors of {_show(layout.tensors)}, and those of {_show(known.tensors)}"
        if layout.tensors == known.tensors:
            what = f"{micro_batch.items:g} items of {divisor:g}, and one of others"
        if layout.others != known.others:
            what = f"{layout.others:.80}, and one of {known.others:.80}"
        raise TaskError(
            f"Step {context.state.progress.step + 1} has a micro-batch with {what} was recorded: "
            "cuda_graph=True takes full batches of one layout only. Pad them to one size, and set "
            f"a micro_batch_size that divides batch_size. {RESUME}"
        )


def list_buffers(context: StepContext) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that a step restores if it is not taken, each with its name."""
    for owner, key in context.buffers.slots:
        if owner[key] is not None:
            yield key, owner[key]


@contextmanager
def preserve_buffers(context: StepContext) -> Iterator[None]:
    """Restore the values of the buffers."""
    before = [tensor.clone() for _, tensor in list_buffers(context)]
    try:
        yield
    finally:
        write_buffers(context, before)


@torch.no_grad()
def write_buffers(context: StepContext, values: list[Tensor]) -> None:
    """Copy values into the buffers."""
    for (_, tensor), value in zip(list_buffers(context), values, strict=True):
        tensor.copy_(value)


def clear_gradients(context: StepContext) -> None:
    """Remove the gradients, and what a forward logged."""
    for parameter in context.strategy.cleared:
        parameter.grad = None
    metrics.pop_logged()


def _parts_of(micro_batch: MicroBatch) -> tuple[Any, ...]:
    return micro_batch.args, dict(micro_batch.kwargs), micro_batch.targets


def _copy_tensors(micro_batch: MicroBatch) -> MicroBatch:
    args, kwargs, targets = map_tensors(_parts_of(micro_batch), _copy_tensor)
    return micro_batch._replace(args=args, kwargs=kwargs, targets=targets)


def _copy_tensor(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides, on which the kernels depend; an expanded one has others."""
    if 0 in tensor.stride():
        return tensor.clone()
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _copy_logged(logged: list[Logged]) -> list[Logged]:
    return [entry._replace(value=entry.value.clone()) for entry in logged]


def _hide(tensor: Tensor) -> Any:
    return ...


def _show(tensors: tuple[Any, ...]) -> str:
    return ", ".join(f"{shape} {dtype}".replace("torch.", "") for shape, dtype, _ in tensors)


@contextmanager
def _explain_errors(context: StepContext) -> Iterator[None]:
    """Explain why a step cannot be recorded.

    Raises:
        TaskError: it reads the device, or replaces a buffer.
    """
    slots = context.buffers.slots
    before = [owner[key] for owner, key in slots]
    try:
        yield
    except RuntimeError as error:
        if ran_out(error):
            raise
        cause = error if error.__context__ is None else error.__context__
        where = place_of(cause)
        raise TaskError(
            f"The step cannot be recorded for cuda_graph=True{where and f', at {where}'}: {cause} "
            "Remove what reads a value of the device in the forward or the loss: .item(), .cpu(), "
            "print(tensor), `if tensor:`, x[mask]. Or leave out cuda_graph."
        ) from error
    for (owner, name), old in zip(slots, before, strict=True):
        if owner[name] is not old:
            raise TaskError(
                f"The forward replaces the buffer {name}, and cuda_graph=True needs it where it "
                f"is. Write self.{name}.copy_(...) instead of self.{name} = ..., or leave out "
                "cuda_graph."
            )
