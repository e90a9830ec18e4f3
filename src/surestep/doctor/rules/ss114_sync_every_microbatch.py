"""DistributedDataParallel reduces the gradients after every batch of an accumulated step.

Each backward pass exchanges all gradients between the processes. With a step after N batches, one
exchange is enough: the first N - 1 can run under `model.no_sync()`. The result is the same, but the
step waits for the network N times.

Ignore it if the memory for the gradients of `no_sync()` is not there, or the exchange costs little.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html

Wrong:

    import torch
    from torch.nn.parallel import DistributedDataParallel

    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(16):
        (model(torch.randn(8, 4)).pow(2).mean() / 4).backward()
        if (index + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    torch.distributed.destroy_process_group()

Right:

    import contextlib

    import torch
    from torch.nn.parallel import DistributedDataParallel

    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(8):
        is_last = (index + 1) % 4 == 0
        with contextlib.nullcontext() if is_last else model.no_sync():
            (model(torch.randn(8, 4)).pow(2).mean() / 4).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
    torch.distributed.destroy_process_group()
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.runtime.windows import Window, WindowWatcher
from surestep.doctor.source.steps import StepOrder, find_windows
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, is_coordinator
from surestep.doctor.source.values import Constant

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from surestep.doctor.watcher import Script

SEVERITY = "speed"
FIX = "Run all but the last backward pass of a step under `with model.no_sync():`."

_WITHOUT_SYNC = re.compile(
    r"no_sync|require_backward_grad_sync|gradient_sync|set_is_last_backward|comm_hook"
)


def check(program: Program) -> Iterator[Problem]:
    """Find accumulation with DistributedDataParallel in scripts without `no_sync`."""
    if program.contains(_WITHOUT_SYNC):
        return
    for trace in program.traces:
        calls = (event.call for event in trace.events)
        names = [call.name for call in calls if call is not None]
        if "DistributedDataParallel" not in names:
            continue
        for window in find_windows(StepOrder(trace)):
            is_one = isinstance(window.size, Constant) and window.size.value == 1
            if len(window.backwards) != 1 or is_one:
                continue
            call = window.backwards[0].event.call
            if call is not None and not is_coordinator(call.receiver):
                yield at_event(
                    window.backwards[0].event,
                    f"`{describe(call)}` reduces the gradients for every batch, but "
                    f"`{window.step.event.text}` needs them for one in `{window.text}`.",
                )


class SyncEveryMicrobatchWatcher(WindowWatcher):
    """Count the backward passes of a step in which DistributedDataParallel reduces."""

    SAMPLED = ("on_backward", "after_step")

    def __init__(self) -> None:
        super().__init__()
        self._model: weakref.ref[nn.Module] | None = None
        self._reduced = 0  # backward passes since the last step

    def on_model(self, run: Script, model: nn.Module) -> None:
        from torch.nn.parallel import DistributedDataParallel

        if isinstance(model, DistributedDataParallel):
            self._model = weakref.ref(model)

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        model = self._model() if self._model is not None else None
        if model is not None:
            self._reduced += bool(getattr(model, "require_backward_grad_sync", False))

    def judge(self, run: Script, optimizer: Optimizer, window: Window, tally: Tally) -> None:
        reduced, self._reduced = self._reduced, 0
        backward = window.find_repeated_backward()
        if backward is not None and reduced == len(window.list_kind("backward")):
            tally.add(backward.location, run.step, reduced)

    def describe(self, tally: Tally) -> str:
        return (
            f"{tally.mistakes} of {tally.checked} steps reduced the gradients of all ranks up to "
            f"{tally.most} times."
        )
