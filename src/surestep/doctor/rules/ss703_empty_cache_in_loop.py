"""The script empties the memory cache of the GPU in each step.

`torch.cuda.empty_cache()` waits for the device, frees all cached blocks, and the next step requests
them again from the driver. Each step gets slower. It does not make more memory available to
PyTorch, which reuses its cache anyway.

Ignore it if another process on the same GPU needs the memory between two steps.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        torch.cuda.empty_cache()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
        torch.cuda.empty_cache()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import find_actions, takes_steps

SEVERITY = "speed"
FIX = "Remove the call, or call it once after an epoch or after an out-of-memory error."


def check(program: Program) -> Iterator[Problem]:
    """Find calls that happen as often as the backward pass or the step."""
    for trace in filter(takes_steps, program.traces):
        parts = ("backward", "step", "scaler_step")
        training = [a.event for a in find_actions(trace) if a.kind in parts]
        for event, call in trace.calls:
            if call.path != "torch.cuda.empty_cache" or event.loop is None:
                continue
            if any(
                part.loop is event.loop and set(event.branches) <= set(part.branches)
                for part in training
            ):
                yield at_event(event, "`torch.cuda.empty_cache()` slows down each step.")
