"""The copies of a model on the ranks are not the same.

DistributedDataParallel averages gradients and never compares parameters. If a rank changes its copy
by itself, for example by a clip with its own norm, an update by hand or a checkpoint that only
rank 0 loads, the copies stay different, and the averaged gradient belongs to none of them. Nothing
fails, and rank 0 saves its own copy.

Ignore it if the copies are meant to differ.

Source: https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design

Wrong:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            model.module.weight.add_(0.1 * dist.get_rank())

Right:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.replicas import ReplicasWatcher, report_replicas
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

SEVERITY = "error"
FIX = "Make the same change on all ranks, and load checkpoints before the model is wrapped."
_TENSORS = 1000  # that are compared
_TOLERANCE = 1e-6  # relative: sums of equal parameters are equal
_SHOWN = 5  # names in a message


class ReplicasDifferWatcher(ReplicasWatcher):
    """Compare the sums of the parameters after the last step that was sampled."""

    SAMPLED = ("after_step",)

    def __init__(self) -> None:
        super().__init__()
        self._models: WeakSet[nn.Module] = WeakSet()
        self._step = 0
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}

    def on_forward(self, run: Script, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().on_forward(run, module, inputs)
        if run.averages_gradients(module):
            self._models.add(module)

    def after_step(self, run: Script, optimizer: Optimizer) -> None:
        for model in self._models:
            self.seen.add_here(run)
            self._step = run.step
            self._sums = {
                name.removeprefix("module."): (_sum(parameter), _sum(parameter.detach().abs()))
                for name, parameter in islice(model.named_parameters(), _TENSORS)
            }

    def report_rank(self, run: Script) -> Any:
        values = {name: [value.item() for value in sums] for name, sums in self._sums.items()}
        return self.locate_facts(step=self._step, sums=values) if values else None

    def observe_ranks(self, facts: Mapping[int, Any]) -> Iterator[Problem]:
        first, *others = facts.values()
        if any(fact["step"] != first["step"] for fact in others):
            return
        different = [
            name
            for name, (total, size) in first["sums"].items()
            if any(
                abs(fact["sums"].get(name, (total,))[0] - total) > _TOLERANCE * (1 + size)
                for fact in others
            )
        ]
        if different:
            more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
            yield report_replicas(
                facts,
                f"After {first['step']} steps, the ranks have different values of "
                f"{', '.join(different[:_SHOWN])}{more}.",
                {"parameters": different[:50], "count": len(different)},
            )


def _sum(tensor: Tensor) -> Tensor:
    import torch

    return tensor.detach().sum(dtype=torch.float64)
