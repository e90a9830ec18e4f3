"""The ranks train on different numbers of batches.

Each step of DistributedDataParallel or FSDP waits for all ranks. A rank that runs out of batches
stops, and the others wait for it: the run hangs, or gloo and NCCL end it with an error of the
connection. If the last batches are only smaller, nothing hangs, but the average of the gradients
counts their samples more. The usual cause is a dataset that was divided by hand.

Ignore it if the loop runs in `torch.distributed.algorithms.Join`, which lets ranks end early.

Source: https://docs.pytorch.org/tutorials/advanced/generic_join.html

Wrong:

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(20, 4).split(12)[dist.get_rank()]
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(x), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.distributed.init_process_group("gloo")
    data = TensorDataset(torch.randn(21, 4))
    sampler = DistributedSampler(data)
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.passes import count_batches
from surestep.doctor.runtime.replicas import ReplicasWatcher, report_replicas
from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

SEVERITY = "error"
FIX = "Divide the data with DistributedSampler, or give the loader drop_last=True on all ranks."
_COMPARED = 20  # iterations over the data


class UnevenBatchesWatcher(ReplicasWatcher):
    """Compare how many batches the loaders of the ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self._lengths: list[int] = []  # of the loaders, in the order of their iterations

    def on_loader(self, run: Script, loader: DataLoader[Any]) -> None:
        length = count_batches(loader) if len(self._lengths) < _COMPARED else None
        if length is not None:
            self._lengths.append(length)
            self.seen.add_here(run)

    def report_rank(self, run: Script) -> Any:
        is_trained = run.backwards and self._lengths
        return self.locate_facts(lengths=self._lengths) if is_trained else None

    def observe_ranks(self, facts: Mapping[int, Any]) -> Iterator[Problem]:
        lengths = {rank: fact["lengths"][0] for rank, fact in facts.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{length} on rank {rank}" for rank, length in lengths.items())
            yield report_replicas(
                facts,
                f"The ranks have different numbers of batches: {listed}.",
                {"batches": list(lengths.values())},
            )
