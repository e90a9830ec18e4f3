"""The forward pass runs in float16, but nothing scales the loss.

Gradients below 6e-8 are 0 in float16, and those below 6e-5 lose digits. Many gradients are that
small, so some parameters get none. Nothing fails: training is only worse than in float32.

Ignore it if the loss is scaled by code that the source does not show.

Source: https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling

Wrong:

    import torch

    model = torch.nn.Linear(4, 1).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = model(torch.randn(8, 4, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.steps import StepOrder, is_autocast
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action, describe, is_made_by, options_of
from surestep.doctor.source.values import Call, Constant, Operation, Symbol, Value, walk

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "error"
FIX = "Use a GradScaler for the backward pass and the step, or dtype=torch.bfloat16."

_SCALES = re.compile(r"scaler|loss_scal|scale_loss|autocast_gpu_dtype|autocast_dtype", re.I)


def check(program: Program) -> Iterator[Problem]:
    """Find backward passes of a loss computed under autocast with float16, without a scaler."""
    if program.contains(_SCALES):
        return
    for trace in program.traces:
        order = StepOrder(trace)
        steps = [action for action in order.actions if action.kind == "step"]
        if not order.is_all_clear or not steps:
            continue
        contexts = {
            id(event.value): event.contexts for event in trace.events if event.call is not None
        }
        for action in order.actions:
            if action.kind != "backward" or not _is_followed_by_step(order, action, steps):
                continue
            context = _find_half_precision(action.target, contexts)
            if context is not None:
                yield at_event(
                    action.event,
                    f"`{action.event.text}` computes gradients in float16 without a "
                    f"scale: the forward pass runs under `{describe(context)}`.",
                )


def _is_followed_by_step(order: StepOrder, action: Action, steps: list[Action]) -> bool:
    return any(
        order.is_before(action.event, step.event) and is_made_by(step.target, "torch.optim.")
        for step in steps
    )


def _find_half_precision(
    loss: Value | None, contexts: dict[int, tuple[Value, ...]]
) -> Value | None:
    """Return the context with float16 in which a model computed a loss."""
    options = options_of(loss)
    if len(options) != 1 or _is_multiplied(options[0]):
        return None
    for value in walk(options[0]):
        if isinstance(value, Call) and value.path == "()":
            for context in contexts.get(id(value), ()):
                if _is_half(context):
                    return context
    return None


def _is_multiplied(loss: Value) -> bool:
    return isinstance(loss, Operation) and loss.operator == "*"


def _is_half(context: Value) -> bool:
    if not is_autocast(context) or not isinstance(context, Call) or context.has_unknown_arguments:
        return False
    is_cuda = context.path.startswith("torch.cuda.")
    dtype = context.argument(1, "dtype")
    if isinstance(dtype, Symbol):
        return dtype.path in ("torch.float16", "torch.half")
    device = context.argument(0, "device_type")
    is_default = dtype is None and "enabled" not in context.keywords
    return is_default and (
        (is_cuda and not context.args)
        or (isinstance(device, Constant) and str(device.value).startswith("cuda"))
    )


class Fp16WithoutScalerWatcher(WindowWatcher):
    """Find steps after forward passes in float16, in a run without a GradScaler."""

    SAMPLED = (*WindowWatcher.SAMPLED, "on_forward", "on_backward")

    def __init__(self) -> None:
        super().__init__()
        self._is_half = self._is_scaled = False

    def on_scale(self, run: Script, scaler: Any) -> None:
        self._is_scaled = True

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if len(run.modules) == 1 and module.training and not (self._is_half or self._is_scaled):
            self._is_half = _is_autocast_to_half()

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        for loss in losses if self._is_half else ():
            # The script may scale the loss itself.
            self._is_scaled |= loss.grad_fn is None or loss.grad_fn.name().startswith("MulBackward")

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        is_half, self._is_half = self._is_half, False
        backward = window.find_last("backward")
        if is_half and not self._is_scaled and backward >= 0 and window.find_last("write") < 0:
            tally.add(window.events[backward].location, run.step)

    def observe(self, run: Script) -> Iterator[Problem]:
        return iter(()) if self._is_scaled else super().observe(run)

    def describe(self, tally: Tally) -> str:
        return (
            f"{tally.mistakes} of {tally.checked} steps came from a forward pass in float16, and "
            "nothing scaled the loss."
        )


def _is_autocast_to_half() -> bool:
    import torch

    return torch.is_grad_enabled() and any(
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.float16
        for device in ("cpu", "cuda")
    )
