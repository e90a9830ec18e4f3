"""The script empties the memory cache of the GPU in each step.

`torch.cuda.empty_cache()` waits for the device, frees all cached blocks, and the next step requests
them again from the driver. Each step gets slower. It does not make more memory available to
PyTorch, which reuses its cache anyway.

Ignore it if another process on the same GPU needs the memory between two steps.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import find_actions

SEVERITY = "speed"
FIX = "Remove the call, or call it once after an epoch or after an out-of-memory error."


def check(program: Program) -> Iterator[Problem]:
    """Find calls that happen as often as the backward pass or the step."""
    for trace in program.traces:
        parts = ("backward", "step", "scaler_step")
        training = [a.event for a in find_actions(trace) if a.kind in parts]
        for event in trace.events:
            call = event.call
            if call is None or call.path != "torch.cuda.empty_cache" or event.loop is None:
                continue
            if any(
                part.loop is event.loop and set(event.branches) <= set(part.branches)
                for part in training
            ):
                yield at_event(event, "`torch.cuda.empty_cache()` slows down each step.")


def bad_in_step():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        torch.cuda.empty_cache()


def bad_in_method():
    import torch

    class Learner:
        def __init__(self) -> None:
            self.model = torch.nn.Linear(4, 1)
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

        def step(self, x: torch.Tensor) -> None:
            torch.cuda.empty_cache()
            self.optimizer.zero_grad()
            self.model(x).pow(2).mean().backward()
            self.optimizer.step()

        def fit(self) -> None:
            for _ in range(10):
                self.step(torch.randn(8, 4))

    Learner().fit()


def bad_with_garbage_collection():
    import gc

    import torch
    from torch.cuda import empty_cache

    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        for _ in range(5):
            loss = net(torch.randn(8, 4)).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            del loss
            gc.collect()
            empty_cache()


def bad_after_accumulated_step(model, loader, optimizer, loss_fn):
    import torch

    for epoch in range(10):
        for i, (x, y) in enumerate(loader):
            (loss_fn(model(x), y) / 4).backward()
            if (i + 1) % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
                torch.cuda.empty_cache()


def good_after_epoch():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
        torch.cuda.empty_cache()


def good_every_thousand_steps():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        if step % 1000 == 999:
            torch.cuda.empty_cache()


def good_after_error():
    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        try:
            model(torch.randn(8, 4)).pow(2).mean().backward()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        optimizer.step()
