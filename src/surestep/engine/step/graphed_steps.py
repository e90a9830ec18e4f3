"""Takes the steps of a loop by replaying a recorded one: `cuda_graph=True`.

The update is bitwise that of `train_step`. The second replayed step proves it: its gradients are
computed without the graphs as well.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.base.warn import warn
from surestep.engine.batch import Batch
from surestep.engine.buffers import bits_of, every_buffer, every_parameter
from surestep.engine.losses.state import own_module
from surestep.engine.model.preserve import BufferSnapshot
from surestep.engine.step.recorded_step import (
    RESUME,
    RecordedStep,
    Recorder,
    check_layouts,
    clear_gradients,
    list_buffers,
    preserve_buffers,
    record_step,
    write_buffers,
)
from surestep.engine.step.train_step import (
    StepContext,
    StepResult,
    UpdateResult,
    forward_backward,
    train_step,
)
from surestep.engine.step_outcome import Logged

_VALUES = (bool, int, float, str)
_MOST_IN_A_ROW = 3  # a layer that is unfrozen, for example, needs one more


class GraphedSteps:
    """Takes the steps of a loop by replaying a recorded one.

    `train_step` takes the first step of a process, the last batch of an epoch if it has fewer
    samples than the others, and batches of which a part has no items.

    Args:
        samples: of a batch that is not the last of an epoch.
        make_recorder: makes what records a step, with its own memory.

    Attributes:
        step: the recorded one; None before the second step.
    """

    def __init__(self, samples: int, make_recorder: Callable[[StepContext], Recorder]) -> None:
        self.step: RecordedStep | None = None
        self._samples, self._make_recorder = samples, make_recorder
        self._has_begun = self._is_compared = False
        self._n_in_a_row = 0  # steps that were recorded
        self._contexts: tuple[StepContext, StepContext] | None = None
        self._host: HostInputs | None = None

    def take(self, context: StepContext, batch: Batch) -> StepResult:
        """Take a step.

        Raises:
            TaskError: the step cannot be recorded, or a replay would have other numbers.
        """
        micro_batches = batch.micro_batches
        is_usual = batch.samples == self._samples and all(micro.items for micro in micro_batches)
        if not self._has_begun or not is_usual:
            self._has_begun |= is_usual
            return train_step(context, batch)
        if self._contexts is None or self._contexts[0] is not context:
            # The graphs copy and restore the buffers.
            graphed = replace(context, buffers=BufferSnapshot(), custom_update=self.update)
            self._contexts = context, graphed
        return train_step(self._contexts[1], batch)

    def update(self, _: StepContext, batch: Batch, divisor: float) -> UpdateResult:
        """Replay the forward, the backward and what follows; record them first if needed."""
        assert self._contexts is not None
        context = self._contexts[0]
        if self._host is None or self.step is None or self._host.has_changed():
            step = self.step = self._record(context, batch, divisor)
        else:
            step, self._n_in_a_row = self.step, 0
        check_layouts(step, context, batch, divisor)
        if self._is_compared or self._n_in_a_row:
            logged = step.compute_gradients(context, batch, divisor)
        else:
            logged, self._is_compared = compare_gradients(step, context, batch, divisor), True
        return step.update(context, logged)

    def _record(self, context: StepContext, batch: Batch, divisor: float) -> RecordedStep:
        self._n_in_a_row += 1
        if self._host is not None and self._n_in_a_row > _MOST_IN_A_ROW:
            raise TaskError(
                f"{self._host.find_changed()} changed before each of the last {_MOST_IN_A_ROW} "
                f"steps, and cuda_graph=True would record each of them. {RESUME}"
            )
        self.step, self._is_compared = None, False  # its memory is free
        step = record_step(context, batch, divisor, self._make_recorder(context))
        self._host = HostInputs(context)
        return step


class HostInputs:
    """What the host reads of the model and the loss while a step is recorded.

    These are the addresses of parameters and buffers, whether they are trained, and the numbers and
    texts in the attributes of modules, such as the rate of a dropout.
    """

    def __init__(self, context: StepContext) -> None:
        roots = (context.state.model, own_module(context.loss), context.loss.teacher)
        modules = [root for root in roots if root is not None]
        self._modules = [module for root in modules for module in root.modules()]
        slots = [
            *every_parameter(*modules),
            *(slot for root in modules for slot in every_buffer(root)),
        ]
        self._tensors = [
            (name, owner._parameters if key in owner._parameters else owner._buffers, key)
            for name, owner, key in slots
        ]
        self._before = self._read()

    def has_changed(self) -> bool:
        """Return whether any of it is not as before; takes 0.2 us for each tensor and module."""
        return self._read() != self._before

    def find_changed(self) -> str:
        """Return the name of a tensor that is not as before, or else what may have changed."""
        for (name, _, _), old, new in zip(self._tensors, self._before, self._read(), strict=False):
            if old != new:
                return f"The tensor {name}"
        return "An attribute of a module"

    def _read(self) -> list[Any]:
        found: list[Any] = []
        for _, owner, key in self._tensors:
            tensor: Any = owner.get(key)
            found.append(tensor is not None and (tensor.data_ptr(), tensor.requires_grad))
        for module in self._modules:
            values = vars(module)
            found += [value for value in values.values() if type(value) in _VALUES]
            found += map(id, (*values["_modules"].values(), *values["_parameters"].values()))
        return found


def compare_gradients(
    recorded: RecordedStep, context: StepContext, batch: Batch, divisor: float
) -> list[Logged]:
    """Replay the micro-batches; check that loss, gradients and buffers are bitwise correct.

    It reads the device. Kernels that round differently each time cannot be compared bitwise: a
    small difference is then a warning.

    Raises:
        TaskError: they are not.
    """
    expected = _compute_plainly(context, batch, divisor)
    before = [tensor.clone() for _, tensor in list_buffers(context)]
    logged = recorded.compute_gradients(context, batch, divisor)
    found = _collect(context, recorded.loss)
    different = _find_different(expected, found)
    if not different:
        return logged
    is_close = all(_is_close(expected[name], found[name]) for name in expected)
    write_buffers(context, before)
    varies = _find_different(expected, _compute_plainly(context, batch, divisor))
    is_exact = (
        context.randomness.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
    )
    if is_exact or not (varies and is_close):
        raise TaskError(
            f"A replay of the recorded step has other numbers than the step ({different}): the "
            "forward or the loss depends on values of the host that change from step to step. "
            "Keep them in buffers, as tensors, or leave out cuda_graph."
        )
    warn(
        f"cuda_graph=True: a replay cannot be compared bitwise with the step, since {varies} is "
        "rounded differently each time. Set deterministic=True to compare them."
    )
    return recorded.compute_gradients(context, batch, divisor)


def _is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether the difference may be one of rounding, in bf16."""
    a, b = a.double(), b.double()
    return bool(((a - b).abs().max() <= 0.02 * a.abs().max()).item()) if a.numel() else True


def _compute_plainly(context: StepContext, batch: Batch, divisor: float) -> dict[str, Tensor]:
    """Compute loss, gradients and buffers without the graphs; the buffers are restored."""
    with preserve_buffers(context):
        gradients = forward_backward(context, batch, divisor)
        found = _collect(context, gradients.loss_sum)
        found = {name: tensor.clone() for name, tensor in found.items()}
    clear_gradients(context)
    return found


def _collect(context: StepContext, loss: Tensor) -> dict[str, Tensor]:
    pairs = zip(context.strategy.names, context.strategy.parameters, strict=True)
    grads = {f"the gradient of {name}": p.grad for name, p in pairs if p.grad is not None}
    return {"the loss": loss, **grads, **{f"the buffer {n}": x for n, x in list_buffers(context)}}


def _find_different(expected: dict[str, Tensor], found: dict[str, Tensor]) -> str:
    """Return the name of the first tensor that is not bitwise the same; "" if all are."""
    for name in expected | found:
        a, b = expected.get(name), found.get(name)
        if a is None or b is None or not torch.equal(bits_of(a), bits_of(b)):
            return name
    return ""
