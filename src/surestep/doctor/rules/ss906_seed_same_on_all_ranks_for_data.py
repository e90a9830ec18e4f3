"""All ranks shuffle with the same seed, so they train on the same batches.

Each rank of a distributed script runs the same lines. With the same seed and a loader that shuffles
the full dataset, all ranks draw the same order. They compute the same gradient, and their average
is the gradient of one rank: N processes do the work of one. With other seeds, each rank still reads
all samples, and an epoch is N epochs.

Ignore it if the dataset differs between ranks. A script with a DistributedSampler, or one that uses
its rank for the data, is not reported.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler

Wrong:

    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.replicas import ReplicasWatcher, report_replicas
from surestep.doctor.source.checkpoints import depends_on_rank
from surestep.doctor.source.loaders import source_of
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe, find_actions, options_of
from surestep.doctor.source.values import Call, Constant, Instance, Unknown, Value, walk
from surestep.doctor.source.wrapping import PREPARES, REDUCES, find_wrappers
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch import Tensor

_COMPARED = 10  # batches
_FEWEST = 3
_ELEMENTS = 4096  # of a tensor, that are summed
SEVERITY = "error"
FIX = "Give the loader sampler=DistributedSampler(dataset) instead of shuffle=True."
_SHARDS = re.compile(r"DistributedSampler|\.shard\(|split_by_node|split_dataset|distribute_|world")
_DIVIDES = re.compile(r"rank|world|shard|num_replicas", re.IGNORECASE)


def check(program: Program) -> Iterator[Problem]:
    """Find loaders that shuffle a full dataset on all ranks, with one seed or with several."""
    may_be_divided = program.contains(_SHARDS)
    for trace in program.traces:
        actions = find_actions(trace)
        is_distributed = any(True for _ in find_wrappers(trace, REDUCES))
        if not is_distributed or not any(action.kind == "backward" for action in actions):
            continue
        loops = {loop for a in actions if a.kind == "backward" for loop in a.event.loops}
        iterated = [part for loop in loops if loop.iterated for part in walk(loop.iterated)]
        has_seed = not may_be_divided and _has_fixed_seed(trace)
        for event, call in trace.calls:
            if not _shuffles_everything(call):
                continue
            if has_seed and call in iterated:
                yield at_event(
                    event,
                    f"`{describe(call)}` gives the same batches to all ranks: they have the same "
                    "seed, and no sampler divides the dataset.",
                )
            elif not has_seed and not _divides(trace, call):
                problem = at_event(
                    event,
                    f"`{describe(call)}` gives all samples to each rank: no sampler divides the "
                    "dataset.",
                    assumed="The ranks have the same dataset.",
                )
                yield replace(problem, severity="warning")


def _divides(trace: Trace, loader: Call) -> bool:
    """Return whether something divides the samples between ranks, or orders them on purpose."""
    for _, call in trace.calls:
        if call.name in PREPARES and loader in call.args:
            return True
        if "Distributed" in call.name and "Sampler" in call.name:
            return True
        if "seed" in call.name and any(map(depends_on_rank, call.arguments)):
            return True
    dataset = loader.argument(0, "dataset")
    made = [source_of(d.cls) for d in options_of(dataset) if isinstance(d, Instance)]
    nodes = [] if dataset is None else [part.node for part in walk(dataset, 60)]
    made += [ast.unparse(node) for node in nodes if isinstance(node, ast.expr)]
    return any(map(_DIVIDES.search, made))


def _has_fixed_seed(trace: Trace) -> bool:
    """Return whether torch is seeded with a number, and never with one that may be the rank's."""
    calls = [call for _, call in trace.calls]
    seeds = [c.argument(0, "seed") for c in calls if c.path in ("torch.manual_seed", "torch.seed")]
    others = [c for c in calls if c.name == "seed_everything" or c.name == "set_seed"]
    return bool(seeds) and not others and all(map(_is_fixed, seeds))


def _is_fixed(seed: Value | None) -> bool:
    return isinstance(seed, Constant)


def _shuffles_everything(call: Call) -> bool:
    if call.path != "torch.utils.data.DataLoader" or call.has_unknown_arguments:
        return False
    shuffle = call.argument(2, "shuffle")
    if not isinstance(shuffle, Constant) or shuffle.value is not True:
        return False
    if any(name in call.keywords for name in ("sampler", "batch_sampler", "generator")):
        return False
    dataset = call.argument(0, "dataset")
    is_known = dataset is not None and not any(isinstance(d, Unknown) for d in walk(dataset))
    return is_known and len(call.args) <= 3 and not depends_on_rank(dataset)


class SeedSameOnAllRanksForDataWatcher(ReplicasWatcher):
    """Compare the first batches of the ranks that train one model."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[list[float]] = []
        self._waiting: Any = None

    def on_batch(self, run: Script, loader: Any, batch: Any, seconds: float) -> None:
        if len(self._batches) < _COMPARED:
            self._waiting = batch

    def on_backward(self, run: Script, losses: Sequence[Tensor], keeps_graph: bool) -> None:
        if self._waiting is not None:
            self.seen.add_here(run)
            self._batches.append(_summarize(self._waiting))
            self._waiting = None

    def report_rank(self, run: Script) -> Any:
        return self.locate_facts(batches=self._batches) if len(self._batches) >= _FEWEST else None

    def observe_ranks(self, facts: Mapping[int, Any]) -> Iterator[Problem]:
        count = min(len(fact["batches"]) for fact in facts.values())
        first, *others = (fact["batches"][:count] for fact in facts.values())
        varies = any(batch != first[0] for batch in first)
        if varies and all(other == first for other in others):
            yield report_replicas(
                facts,
                f"{len(facts)} ranks trained on the same {count} batches in the same order.",
                {"batches": count},
            )


def _summarize(batch: Any) -> list[float]:
    """Return the sums of the first elements of the tensors of a batch."""
    import torch

    values = batch.values() if isinstance(batch, Mapping) else batch
    listed = [values] if isinstance(values, torch.Tensor) else values
    tensors = [value for value in listed if isinstance(value, torch.Tensor)]
    return [tensor.flatten()[:_ELEMENTS].double().sum().item() for tensor in tensors[:4]]
