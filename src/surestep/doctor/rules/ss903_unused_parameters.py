"""A parameter under DistributedDataParallel gets no gradient in a backward pass.

DistributedDataParallel waits for the gradient of each parameter before it averages them. A
parameter that the loss does not use never reports one: the next forward pass raises an error that
names no parameter, or with other collectives the ranks wait forever. This rule names them.

A model with `find_unused_parameters=True` or `static_graph=True` is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html

Wrong:

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)


    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor, nn

SEVERITY = "error"
FIX = "Use the layer in forward(), freeze it, or pass find_unused_parameters=True."
_CHECKED = 3  # backward passes
_SHOWN = 5  # names in a message


class UnusedParametersWatcher(Watcher):
    """Remember the parameters without a gradient after each of the first backward passes."""

    SAMPLED = ("on_forward", "after_backward")

    def __init__(self) -> None:
        self._called: WeakSet[nn.Module] = WeakSet()
        self._unused: set[str] | None = None
        self._passes = Tally()  # that were checked

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[object, ...]) -> None:
        if self._passes.mistakes < _CHECKED and type(module).__name__ == "DistributedDataParallel":
            finds = getattr(module, "find_unused_parameters", True)
            if module.training and not finds and not getattr(module, "static_graph", False):
                self._called.add(module)

    def after_backward(self, run: Script, losses: Sequence[Tensor]) -> None:
        if not self._called:  # iterating over an empty weak set takes longer than all else here
            return
        for module in self._called:
            unused = {
                name.removeprefix("module.")
                for name, parameter in module.named_parameters()
                if parameter.requires_grad and parameter.grad is None
            }
            self._passes.add_here(run)
            self._unused = unused if self._unused is None else self._unused & unused
        self._called.clear()

    def observe(self, run: Script) -> Iterator[Problem]:
        if not self._unused:
            return
        names = sorted(self._unused)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield self._passes.report(
            "DistributedDataParallel waits for gradients of "
            f"{', '.join(names[:_SHOWN])}{more}, which the loss does not use.",
            {"parameters": names[:50], "count": len(names)},
        )
