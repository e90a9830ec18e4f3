"""The losses of an accumulated batch are summed, but each is already a mean.

`backward()` adds the gradients of N batches. If each loss is the mean over its batch, the sum is N
times the gradient of the large batch that is meant. SGD then takes steps N times too long, and a
clip by norm shrinks them N times more. Nothing fails: the result only differs from that of the
large batch. So it does if the loss is divided by the number of the batch instead of N.

Ignore it if the learning rate was chosen for the sum. It is not reported for optimizers such as
Adam, which do not depend on the size of the gradient, unless the gradient is clipped.

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(12):
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        loss.backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(12):
        loss = torch.nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))
        (loss / 4).backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.choices import is_chosen
from surestep.doctor.source.gradients import is_mean, is_mean_or_of_model
from surestep.doctor.source.nodes import describe_source, find_names
from surestep.doctor.source.steps import (
    StepOrder,
    StepWindow,
    find_range_windows,
    find_running_counter,
    find_windows,
    has_clip,
    is_part_of,
    unscale,
)
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import Action, is_coordinator, is_made_by, options_of
from surestep.doctor.source.values import Attribute, Constant, Operation, Unknown, Value, last_name

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from surestep.doctor.watcher import Script

SEVERITY = "warning"
FIX = "Divide the loss by the number of batches of a step before backward()."

_COUNTED = "The loss is divided by `{}`, which counts {}: the later ones have less weight."
_ADAPTIVE = tuple(
    f"torch.optim.{name}" for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop")
)


def check(program: Program) -> Iterator[Problem]:
    """Find backward passes of a mean in each pass of a loop that steps in one of N."""
    for trace in program.traces:
        order = StepOrder(trace)
        for backward in order.actions:
            if counter := find_running_counter(order, backward):
                yield at_event(backward.event, _COUNTED.format(counter, "the batches of a step"))
        for backward, step, size in find_range_windows(order):
            loss, is_clipped = unscale(backward.target), has_clip(order, step)
            text = describe_source(size)
            is_count = "accum" in text.lower() or text.isdigit()
            if is_count and _depends_on_size(step, is_clipped) and is_mean_or_of_model(loss):
                yield at_event(
                    backward.event,
                    f"`{step.event.text}` uses the sum of `{text}` gradients: "
                    f"`{backward.event.text}` does not divide.",
                    step_line=step.event.line,
                    assumed="" if is_mean(loss) else "The model returns the mean of a batch.",
                )
        for window in find_windows(order):
            step, summed = window.step, _find_backward(order, window)
            if counter := _find_counter(window):
                yield at_event(
                    window.backwards[0].event,
                    _COUNTED.format(counter, f"the batches, and not by `{window.text}`"),
                    step_line=step.event.line,
                )
            if summed is None or not _depends_on_size(step, _is_clipped(window)):
                continue
            if _is_count(window.size):
                yield at_event(
                    summed.event,
                    f"`{step.event.text}` uses the sum of `{window.text}` "
                    f"gradients of a mean: `{summed.event.text}` does not divide.",
                    step_line=step.event.line,
                    assumed=_describe_assumption(window),
                )


def _find_backward(order: StepOrder, window: StepWindow) -> Action | None:
    """Return the only backward pass of a window that is zeroed once, if its loss is a mean."""
    step, backward = window.step.event, window.backwards[0]
    zeroes = [action for action in window.actions if action.kind == "zero_grad"]
    if len(window.backwards) != 1 or not zeroes or not order.is_clear_inside(step):
        return None
    call = backward.event.call
    if call is None or is_coordinator(call.receiver) or not is_part_of(backward.event, step):
        return None
    is_window = all(window.branch in zero.event.branches for zero in zeroes)
    return backward if is_window and is_mean(unscale(backward.target)) else None


def _find_counter(window: StepWindow) -> str:
    """Return the counter by which a loss is divided, and by which the step is chosen."""
    loss = unscale(window.backwards[0].target)
    if not isinstance(loss, Operation) or not isinstance(loss.node, ast.BinOp):
        return ""
    names = find_names(loss.node.right, ast.Load)
    is_counter = loss.operator == "/" and bool(names) and names == window.counted
    return ast.unparse(loss.node.right) if is_counter else ""


def _is_count(count: Value) -> bool:
    """Return whether N is certainly more than 1, or named as a number of batches to sum."""
    if isinstance(count, Constant):
        return isinstance(count.value, int) and count.value > 1
    name = last_name(count).lower() if isinstance(count, (Unknown, Attribute)) else ""
    return "accum" in name


def _describe_assumption(window: StepWindow) -> str:
    is_known = _is_clipped(window) or not any(map(is_chosen, options_of(window.step.target)))
    return "" if is_known else "The optimizer is one like SGD, which depends on that size."


def _is_clipped(window: StepWindow) -> bool:
    return any(action.kind == "clip" for action in window.actions)


def _depends_on_size(step: Action, is_clipped: bool) -> bool:
    """Return whether a step with gradients N times too large differs."""
    is_known = is_made_by(step.target, "torch.optim.")
    return is_clipped or (is_known and not is_made_by(step.target, *_ADAPTIVE))


class AccumulationNotDividedWatcher(WindowWatcher):
    """Find steps with several backward passes of means in one line."""

    SAMPLED = ("on_batch", "on_backward", "after_step")

    def __init__(self) -> None:
        super().__init__()
        self._means = self._scaled = 0  # backward passes of means, and the next one that is scaled
        self._batches: Counter[int] = Counter()

    def on_batch(self, run: Script, loader: DataLoader[Any], batch: Any, seconds: float) -> None:
        self._batches[id(loader)] += 1

    def on_scale(self, run: Script, scaler: Any) -> None:
        self._scaled = run.backwards + 1

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        # A graph that is kept has several losses of one batch, which may be summed on purpose.
        if len(losses) == 1 and not keeps_graph:
            self._means += _is_computed_mean(losses[0], is_scaled=self._scaled == run.backwards)

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        super().after_step(run, optimizer)
        self._means = 0
        self._batches.clear()

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        backward = window.find_repeated_backward()
        kinds = [event.kind for event in window.events]
        if backward is None or "write" in kinds or len(run.optimizers) > 1:
            return
        count = kinds.count("backward")
        is_summed = "zero" not in kinds[kinds.index("backward") :] and self._means == count
        # Several losses of one batch may be summed on purpose.
        is_of_batches = not self._batches or count in self._batches.values()
        if is_summed and is_of_batches and ("clip" in kinds or type(optimizer).__name__ == "SGD"):
            tally.add(backward.location, run.step, count)

    def describe(self, tally: Tally) -> str:
        return (
            f"{tally.mistakes} of {tally.checked} steps used the sum of up to {tally.most} "
            "gradients of a mean, which is as many times too large."
        )


def _is_computed_mean(loss: Tensor, *, is_scaled: bool) -> bool:
    """Return whether the last operation of a loss is a mean, before a GradScaler scales it."""
    node = loss.grad_fn
    if is_scaled and node is not None and node.name().startswith("MulBackward"):
        node = node.next_functions[0][0]
    if node is None:
        return False
    return node.name().startswith("MeanBackward") or getattr(node, "_saved_reduction", 0) == 1
