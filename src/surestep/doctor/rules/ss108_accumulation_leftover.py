"""The last batches of an epoch are accumulated, but no step of the epoch uses them.

With a step after every N-th batch, up to N - 1 batches are left at the end of the epoch. If their
gradients are zeroed before the next epoch, these batches do not count: a little of the data,
another part in each epoch, is lost. If they are not zeroed, the first step of the next epoch uses
the sum of more than N batches. Nothing fails. The source shows only the first of these, and a run
shows both.

Ignore it if the number of batches is a multiple of N.

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation

Wrong:

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for index, (x, y) in enumerate(loader):
            loss = torch.nn.functional.mse_loss(model(x), y) / 4
            loss.backward()
            if (index + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

Right:

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(40, 4), torch.randn(40, 1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = 0
    for _ in range(4):
        for x, y in loader:
            count += 1
            loss = torch.nn.functional.mse_loss(model(x), y) / 2
            loss.backward()
            if count % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from surestep.base.text import format_count
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.source.schedules import is_over_batches
from surestep.doctor.source.steps import StepOrder, find_windows, is_zeroed_by
from surestep.doctor.source.trace import Branch, Program
from surestep.doctor.source.training import Action, may_be_same
from surestep.doctor.source.values import Call, Operation, walk
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

SEVERITY = "info"
FIX = "Step also after the last batch: `if (i + 1) % n == 0 or i + 1 == len(loader)`."
_FEWEST_EPOCHS = 2
_FEWEST_STEPS = 3
_KEPT = 1000  # epochs


def check(program: Program) -> Iterator[Problem]:
    """Find steps for one in N batches of a DataLoader, whose rest is zeroed for the next epoch."""
    for trace in program.traces:
        order = StepOrder(trace)
        for window in find_windows(order):
            step, loops = window.step, window.step.event.loops
            if len(loops) < 2 or not is_over_batches(loops[-1]) or not order.is_all_clear:
                continue
            if _is_plain(window.branch) and _is_dropped(order, step):
                yield at_event(
                    step.event,
                    f"`{step.event.text}` runs for one in `{window.text}` batches: "
                    "those after the last one of an epoch are not used.",
                )


def _is_plain(branch: Branch) -> bool:
    """Return whether a condition is only `step % N == 0`, without the last batch."""
    test = branch.test
    parts = [] if test is None else list(walk(test))
    is_comparison = isinstance(test, Operation) and test.operator in ("==", "!=", "%", "not")
    return is_comparison and not any(isinstance(part, Call) for part in parts)


def _is_dropped(order: StepOrder, step: Action) -> bool:
    inner, outer = step.event.loops[-1], step.event.loops[-2]
    for action in order.actions:
        is_step = action.is_step and action is not step
        if is_step and may_be_same(action.target, step.target):
            return False
    return any(
        is_zeroed_by(action, step.target)
        and action.event.loop is outer
        and not action.event.branches
        and inner not in action.event.loops
        for action in order.actions
    )


class AccumulationLeftoverWatcher(Watcher):
    """Count the backward passes after the last step of an epoch."""

    def __init__(self) -> None:
        self._stepped_at = self._ended_at = 0  # backward passes
        self._windows: Counter[int] = Counter()
        self._lost, self._first_lost = list[int](), Tally()
        self._carried, self._first_carried = list[int](), Tally()  # batches, some of the last epoch

    def on_step(self, run: Script, optimizer: Optimizer) -> None:
        batches = run.backwards - self._stepped_at
        if self._stepped_at < self._ended_at < run.backwards:
            self._first_carried.add_here(run)
            self._carried.append(batches)
            del self._carried[_KEPT:]
        else:
            self._windows[batches] += 1
        self._stepped_at = run.backwards

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        self._stepped_at = run.backwards  # a closure may have made more

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._ended_at = run.backwards

    def on_zero_grad(self, run: Script, parameters: Sequence[Tensor]) -> None:
        if self._stepped_at < self._ended_at == run.backwards:
            location = self._first_lost.location if self._lost else run.locate()
            self._first_lost.add(location, run.step)
            self._lost.append(run.backwards - self._stepped_at)
            del self._lost[_KEPT:]
            self._stepped_at = run.backwards

    def observe(self, run: Script) -> Iterator[Problem]:
        if len(self._windows) != 1 or len(run.optimizers) > 1:
            return
        ((size, steps),) = self._windows.items()
        if size < 2 or steps < _FEWEST_STEPS:
            return
        if len(self._carried) >= _FEWEST_EPOCHS and min(self._carried) > size:
            yield self._first_carried.report(
                f"The first step of {len(self._carried)} epochs used {max(self._carried)} batches, "
                f"some of them of the epoch before. The other steps used {size}.",
                {"batches": max(self._carried), "epochs": len(self._carried), "window": size},
            )
        elif len(self._lost) >= _FEWEST_EPOCHS and max(self._lost) < size:
            yield self._first_lost.report(
                f"At the end of {len(self._lost)} epochs, gradients were zeroed before a step used "
                f"them: those of {format_count(max(self._lost), 'batch', 'batches')}. A step uses "
                f"{size}.",
                {"batches": self._lost[0], "epochs": len(self._lost), "window": size},
            )
