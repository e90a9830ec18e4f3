"""The losses of an accumulated batch are summed, but each is already a mean.

`backward()` adds the gradients of N batches. If each loss is the mean over its batch, the sum is N
times the gradient of the large batch that is meant. SGD then takes steps N times too long, and a
clip by norm shrinks them N times more. Nothing fails: the result only differs from that of the
large batch.

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

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.gradients import is_forward, is_loss_module
from surestep.doctor.source.steps import StepOrder, StepWindow, find_windows, is_part_of, is_scaled
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import (
    Action,
    is_coordinator,
    is_made_by,
    options_of,
)
from surestep.doctor.source.values import Attribute, Call, Constant, Unknown, Value, last_name

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    from surestep.doctor.watcher import Script

SEVERITY = "warning"
FIX = "Divide the loss by the number of batches of a step before backward()."

_MEANS = frozenset(
    "cross_entropy mse_loss l1_loss smooth_l1_loss huber_loss nll_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits mean".split()
)
_ADAPTIVE = tuple(
    f"torch.optim.{name}" for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop")
)


def check(program: Program) -> Iterator[Problem]:
    """Find backward passes of a mean in each pass of a loop that steps in one of N."""
    for trace in program.traces:
        order = StepOrder(trace)
        for window in find_windows(order):
            step, backward = window.step, _find_backward(order, window)
            if backward is not None and _is_count(window.size) and _depends_on_size(window):
                yield at_event(
                    backward.event,
                    f"`{step.event.text}` uses the sum of `{window.text}` "
                    f"gradients of a mean: `{backward.event.text}` does not divide.",
                    step_line=step.event.line,
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
    loss = backward.target
    if isinstance(loss, Call) and is_scaled(loss):
        loss = loss.argument(0, "")
    return backward if is_window and _is_mean(loss) else None


def _is_mean(loss: Value | None) -> bool:
    return bool(options_of(loss)) and all(map(_is_one_mean, options_of(loss)))


def _is_one_mean(loss: Value) -> bool:
    if isinstance(loss, Attribute) and loss.name == "loss":  # of a model of transformers
        return is_forward(loss.base)
    if not isinstance(loss, Call):
        return False
    made = loss.receiver if loss.path == "()" else loss
    if not isinstance(made, Call) or made.has_unknown_arguments:
        return False
    is_loss = is_loss_module(made) and not made.path.startswith("torch.nn.functional.")
    if not is_loss and made.name not in _MEANS:
        return False
    reduction = made.keywords.get("reduction")
    return reduction is None or (isinstance(reduction, Constant) and reduction.value == "mean")


def _is_count(count: Value) -> bool:
    """Return whether N is certainly more than 1, or named as a number of batches to sum."""
    if isinstance(count, Constant):
        return isinstance(count.value, int) and count.value > 1
    name = last_name(count).lower() if isinstance(count, (Unknown, Attribute)) else ""
    return "accum" in name


def _depends_on_size(window: StepWindow) -> bool:
    if any(action.kind == "clip" for action in window.actions):
        return True
    optimizer = window.step.target
    return is_made_by(optimizer, "torch.optim.") and not is_made_by(optimizer, *_ADAPTIVE)


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
