"""Each rank evaluates its own part of the data, and reports it as if it were all of it.

A DistributedSampler gives each rank another part. The loss or the accuracy that rank 0 prints, or
that chooses the best epoch, is then that of one part, and ranks may even decide differently, such
as whether to stop. Nothing fails: the number is only noisier, and changes with the number of ranks.

Sums and counts must be added over the ranks with `torch.distributed.all_reduce`, and divided after
that. `surestep watch` reports evaluations that compute a loss or compare classes, if no collective
is called before training continues, or the script ends.

Ignore it if only the loss of one part is wanted, or if something else adds them.

Source: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce

Wrong:

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler


    @torch.no_grad()
    def evaluate(model, loader):
        model.eval()
        correct = total = 0
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
            total += len(y)
        return correct / total


    data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    print(evaluate(nn.Linear(4, 3), loader))

Right:

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


    @torch.no_grad()
    def evaluate(model, loader):
        sums = torch.zeros(2)
        for x, y in loader:
            sums[0] += (model(x).argmax(1) == y).sum()
            sums[1] += len(y)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        return (sums[0] / sums[1]).item()


    data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    print(evaluate(nn.Linear(4, 3), DataLoader(data, batch_size=8, sampler=sampler)))
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.loss_curves import MEAN_LOSSES
from surestep.doctor.source.evaluation import find_forwards, has_training, is_measured
from surestep.doctor.source.loaders import SourceLoader, find_loader_of, find_loaders
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, is_without_grad, options_of
from surestep.doctor.source.values import Call
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader

SEVERITY = "warning"
FIX = "Add the sums and the counts of all ranks with all_reduce() before you divide them."
_MOST_LINES = 16
# A script that calls one of these may combine what the ranks computed.
_COMBINES = re.compile(
    r"reduce|gather|broadcast|sync_dist|torchmetrics|torcheval|synchronize_between"
)


def check(program: Program) -> Iterator[Problem]:
    """Find evaluations of the part of a rank in scripts that combine nothing."""
    if program.contains(_COMBINES):
        return
    for trace in program.traces:
        loaders = [loader for loader in find_loaders(trace) if _is_divided(loader)]
        for event, output in find_forwards(trace) if loaders else ():
            is_evaluation = is_without_grad(event) and not has_training(trace, event)
            if not is_evaluation or find_loader_of(event.loops, loaders) is None:
                continue
            if is_measured(trace, event, output):
                yield at_event(
                    event,
                    f"`{describe(output)}` evaluates the part of this rank, and nothing adds those "
                    "of the others.",
                )


def _is_divided(loader: SourceLoader) -> bool:
    """Return whether a loader gives each rank another part of the data."""
    samplers = options_of(loader.option("sampler"))
    return bool(samplers) and all(
        isinstance(sampler, Call)
        and sampler.path.startswith("torch.utils.data")
        and sampler.name == "DistributedSampler"
        for sampler in samplers
    )


@dataclass
class _Evaluations:
    """The evaluations of one line.

    Attributes:
        first: the step after which the first one was.
        replicas: among which the data is divided.
        added: how many a collective followed.
        alone: how many none followed.
    """

    first: int
    replicas: int
    added: int = 0
    alone: int = 0


class EvaluationOnEveryRankUnreducedWatcher(Watcher):
    """Find evaluations of a part of the data that no collective follows."""

    FUNCTIONS = (*MEAN_LOSSES, "eq", "collective")

    def __init__(self) -> None:
        self._replicas = 1  # of the data that is iterated over
        self._loader: weakref.ref[DataLoader[Any]] | None = None  # while it is iterated over
        self._trained: WeakSet[DataLoader[Any]] = WeakSet()
        self._open: _Evaluations | None = None
        self._opened_by: weakref.ref[DataLoader[Any]] | None = None
        self._found: dict[Location, _Evaluations] = {}

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        from torch import distributed

        is_group = distributed.is_available() and distributed.is_initialized()
        count = getattr(loader.sampler, "num_replicas", 1) if is_group else 1
        is_divided = isinstance(count, int) and loader not in self._trained
        self._replicas = count if is_divided else 1
        self._loader = weakref.ref(loader)

    def after_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        self._replicas, self._loader = 1, None

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.name == "collective":
            self._end(is_added=True)
        elif (
            self._replicas > 1 and self._open is None and not run.in_backward and _is_measured(call)
        ):
            location = run.locate()
            found = self._found.get(location)
            if found is None and len(self._found) < _MOST_LINES:
                found = self._found[location] = _Evaluations(run.step, self._replicas)
            self._open, self._opened_by = found, self._loader

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        loader = None if self._loader is None else self._loader()
        if loader is not None and self._replicas > 1:
            self._trained.add(loader)  # what is measured in this pass is of the training
            self._replicas = 1
            if self._opened_by is self._loader:
                self._open = None
        self._end(is_added=False)

    def _end(self, *, is_added: bool) -> None:
        """Count the last evaluation, if there is one that is not counted."""
        if self._open is not None:
            self._open.added += is_added
            self._open.alone += not is_added
            self._open = None

    def observe(self, run: Script) -> Iterator[Problem]:
        if run.is_whole:
            self._end(is_added=False)
        for location, found in self._found.items():
            if found.alone and not found.added:
                yield Problem(
                    f"{found.alone} evaluations of one of {found.replicas} parts of the data, and "
                    "no collective added those of the other ranks.",
                    {"evaluations": found.alone, "parts": found.replicas},
                    location=location,
                    since_step=found.first + 1,
                )


def _is_measured(call: TorchCall) -> bool:
    """Return whether a call computes a loss without a graph, or compares classes."""
    if call.name in MEAN_LOSSES:
        return not call.result.requires_grad
    import torch

    predicted, target = call["input"], call["other"]
    return (
        not torch.is_grad_enabled()
        and isinstance(target, torch.Tensor)
        and predicted.shape == target.shape
        and target.dim() > 0
        and not (predicted.is_floating_point() or target.is_floating_point())
    )
