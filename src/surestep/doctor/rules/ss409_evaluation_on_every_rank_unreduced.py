"""Each rank evaluates its own part of the data, and reports it as if it were all of it.

A DistributedSampler gives each rank another part. The loss or the accuracy that rank 0 prints, or
that chooses the best epoch, is then that of one part, and ranks may even decide differently, such
as whether to stop. Nothing fails: the number is only noisier, and changes with the number of ranks.

Sums and counts must be added over the ranks with `torch.distributed.all_reduce`, and divided after
that. Ignore it if only the loss of one part is wanted, or if something else adds them.

Source: https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.evaluation import find_forwards, has_training, is_measured
from surestep.doctor.source.loaders import Loader, find_loader_of, find_loaders
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, is_without_grad, options_of
from surestep.doctor.source.values import Call

SEVERITY = "warning"
FIX = "Add the sums and the counts of all ranks with all_reduce() before you divide them."
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


def _is_divided(loader: Loader) -> bool:
    """Return whether a loader gives each rank another part of the data."""
    samplers = options_of(loader.option("sampler"))
    return bool(samplers) and all(
        isinstance(sampler, Call)
        and sampler.path.startswith("torch.utils.data")
        and sampler.name == "DistributedSampler"
        for sampler in samplers
    )


def bad_function():
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


def bad_block():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, 2, 0))
    model, criterion, losses = nn.Linear(4, 1).eval(), nn.MSELoss(), []
    with torch.inference_mode():
        for batch in loader:
            losses.append(criterion(model(batch[0]), batch[1]).item())
    print(sum(losses) / len(losses))


def bad_method():
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    class Trainer:
        def __init__(self, model, data):
            self.model = model
            sampler = DistributedSampler(data, num_replicas=2, rank=1)
            self.val_loader = DataLoader(data, batch_size=4, sampler=sampler)

        def validate(self):
            total = 0.0
            with torch.no_grad():
                for x, y in self.val_loader:
                    total += F.cross_entropy(self.model(x), y).item()
            return total / len(self.val_loader)

    data = TensorDataset(torch.randn(16, 4), torch.randint(3, (16,)))
    print(Trainer(nn.Linear(4, 3), data).validate())


def good_added_over_the_ranks():
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


def good_all_data_on_every_rank():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(32, 4), torch.randint(3, (32,)))
    loader = DataLoader(data, batch_size=8)
    model, correct = nn.Linear(4, 3).eval(), 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
    print(correct / len(data))


def good_training():
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())
