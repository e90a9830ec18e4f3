"""A batch is copied with `non_blocking=True` from memory that is not pinned.

A copy to the GPU runs beside the computation only if the source is in pinned memory. The loader
makes batches in ordinary memory, so each copy waits, and `non_blocking=True` has no effect.

Ignore it on a CPU. A loader with `pin_memory` set by an option of the script is not reported.

Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html

Wrong:

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        loss = (model(x.to(device, non_blocking=True)) - y.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_cuda = device.type == "cuda"
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(32, 4))
    for (x,) in DataLoader(data, batch_size=8, shuffle=True, pin_memory=is_cuda):
        optimizer.zero_grad()
        model(x.to(device, non_blocking=True)).pow(2).mean().backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe
from surestep.doctor.source.values import Attribute, Call, Constant, Element, Item, Value

SEVERITY = "speed"
FIX = "Create the loader with DataLoader(..., pin_memory=True)."


def check(program: Program) -> Iterator[Problem]:
    """Find copies of batches of a loader that does not pin them."""
    for trace in program.traces:
        for event, call in trace.calls:
            if call.name not in ("to", "cuda") or not call.is_method:
                continue
            option = call.argument(-1, "non_blocking")
            if not isinstance(option, Constant) or option.value is not True:
                continue
            loader = _loader_of(call.receiver)
            others = (e.call for e in trace.events if e.node is event.node)  # by another branch
            if any(other is not None and _loader_of(other.receiver) is None for other in others):
                continue
            if loader is not None and not _may_pin(loader):
                yield at_event(
                    event,
                    f"`{describe(call)}` waits for the copy: `{describe(loader)}` does not pin its "
                    "batches.",
                )


def _loader_of(value: Value | None) -> Call | None:
    """Return the loader whose batch, or a part of it, a value is."""
    while isinstance(value, (Item, Element, Attribute)):
        if isinstance(value, Element):
            loader = value.of
            is_loader = isinstance(loader, Call) and loader.path == "torch.utils.data.DataLoader"
            return loader if is_loader and isinstance(loader, Call) else None
        value = value.base
    return None


def _may_pin(loader: Call) -> bool:
    """Return whether the batches may be pinned."""
    option = loader.argument(7, "pin_memory")
    is_off = option is None or (isinstance(option, Constant) and not option.value)
    has_collate = loader.argument(6, "collate_fn") is not None  # which may pin them itself
    return loader.has_unknown_arguments or has_collate or not is_off
