"""The ranks train on different numbers of batches.

Each step of DistributedDataParallel or FSDP waits for all ranks. A rank that runs out of batches
stops, and the others wait for it: the run hangs, or gloo and NCCL end it with an error of the
connection. If the last batches are only smaller, nothing hangs, but the average of the gradients
counts their samples more. The usual cause is a dataset that was divided by hand.

Ignore it if the loop runs in `torch.distributed.algorithms.Join`, which lets ranks end early.

Source: https://docs.pytorch.org/tutorials/advanced/generic_join.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from surestep.doctor.runtime.passes import count_batches
from surestep.doctor.watcher import NOWHERE, Location, Observation, Run, Watcher

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DataLoader

SEVERITY = "error"
FIX = "Divide the data with DistributedSampler, or give the loader drop_last=True on all ranks."
_COMPARED = 20  # iterations over the data


class Watch(Watcher):
    """Compare how many batches the loaders of the ranks have."""

    def __init__(self) -> None:
        self._lengths: list[int] = []  # of the loaders, in the order of their iterations
        self._location = NOWHERE
        self._has_replicas = False

    def on_loader(self, run: Run, loader: DataLoader[Any]) -> None:
        length = count_batches(loader) if len(self._lengths) < _COMPARED else None
        if length is None:
            return
        self._lengths.append(length)
        if len(self._lengths) == 1:
            self._location = run.locate()

    def on_forward(self, run: Run, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if run.averages_gradients(module):
            self._has_replicas = True

    def report_rank(self, run: Run) -> Any:
        if not (self._has_replicas and run.backwards and self._lengths):
            return None
        location = self._location.file, self._location.line
        return {"lengths": self._lengths, "location": location}

    def observe_ranks(self, facts: Mapping[int, Any]) -> Iterator[Observation]:
        lengths = {rank: fact["lengths"][0] for rank, fact in facts.items()}
        if len(set(lengths.values())) > 1:
            file, line = facts[min(facts)]["location"]
            listed = ", ".join(f"{length} on rank {rank}" for rank, length in lengths.items())
            yield Observation(
                Location(file, line),
                f"The ranks have different numbers of batches: {listed}.",
                1,
                {"batches": list(lengths.values()), "ranks": sorted(facts)},
            )


def bad_divided_by_hand() -> None:
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


def bad_batch_size_of_rank():
    import os

    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    torch.distributed.init_process_group("gloo")
    data = TensorDataset(torch.randn(32, 4))
    sizes = {"0": 4, "1": 8}
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=sizes[os.environ["RANK"]], sampler=sampler)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(1):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).abs().mean().backward()
            optimizer.step()


def bad_filtered() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, Subset, TensorDataset

    class Trainer:
        def __init__(self) -> None:
            dist.init_process_group("gloo")
            data = TensorDataset(torch.arange(40.0).view(10, 4))
            mine = [index for index in range(10) if (index % 3 > 0) == dist.get_rank()]
            self.loader = DataLoader(Subset(data, mine), batch_size=1, shuffle=True)
            self.model = DDP(torch.nn.Linear(4, 1))
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)

        def fit(self) -> None:
            for (x,) in self.loader:
                self.optimizer.zero_grad()
                self.model(x).pow(2).mean().backward()
                self.optimizer.step()

    Trainer().fit()


def good_sampler():
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


def good_evaluation_on_rank_0() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(16, 4))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        with torch.no_grad():
            print(sum(model.module(x).sum() for (x,) in DataLoader(data, batch_size=2)))


def good_same_length() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(24, 4).chunk(2)[dist.get_rank()]
    model = DDP(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in DataLoader(TensorDataset(x), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
