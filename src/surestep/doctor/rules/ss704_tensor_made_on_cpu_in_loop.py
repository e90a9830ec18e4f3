"""A tensor is made on the CPU in each step, and then copied to the GPU.

`torch.randn(...).to(device)` fills memory of the CPU, copies it, and makes the CPU wait for the
copy. `torch.randn(..., device=device)` makes it where it is used. `.cuda()` in a Dataset copies one
sample at a time, and fails in workers that were forked.

Ignore it if the numbers must be the same on the CPU and on a GPU. A tensor that is made with a
generator, or from data, is not reported.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html

Wrong:

    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        noise = torch.randn(8, 4).to(device)
        optimizer.zero_grad()
        model(noise).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        noise = torch.randn(8, 4, device=device)
        optimizer.zero_grad()
        model(noise).pow(2).mean().backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.devices import moves_to_gpu
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, find_actions, takes_steps
from surestep.doctor.source.values import Call, Class

SEVERITY = "speed"
FIX = "Pass device=device to the function that makes the tensor; move batches after the loader."
_MAKERS = tuple(
    f"torch.{name}" for name in "zeros ones full empty rand randn randint arange eye".split()
)


def check(program: Program) -> Iterator[Problem]:
    """Find new tensors that are moved in a training loop, and moves in datasets."""
    for trace in program.traces:
        actions = find_actions(trace) if takes_steps(trace) else []
        backwards = {a.event.loop for a in actions if a.kind == "backward"}
        for event, call in trace.calls:
            if not moves_to_gpu(call):
                continue
            made = call.receiver
            is_new = isinstance(made, Call) and made.path in _MAKERS and not _is_placed(made)
            if is_new and event.loop is not None and event.loop in backwards:
                yield at_event(event, f"`{describe(call)}` makes a tensor on the CPU in each step.")
            elif _is_in_dataset(event):
                yield at_event(event, f"`{describe(call)}` copies each sample by itself.")


def _is_placed(made: Call) -> bool:
    options = ("device", "generator", "out", "pin_memory")
    return made.has_unknown_arguments or any(name in made.keywords for name in options)


def _is_in_dataset(event: Event) -> bool:
    function = event.stack[-1] if event.stack else None
    if function is None or function.name != "__getitem__":
        return False
    cls = getattr(function.owner, "cls", None)
    return isinstance(cls, Class) and "torch.utils.data.Dataset" in cls.outside_bases
