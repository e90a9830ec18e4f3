"""The backward pass runs inside `torch.autocast`.

Autocast belongs around the forward pass and the loss. `backward()` uses the types that the forward
pass chose, so the context gives it nothing. Operations of your own backward functions are cast,
which can lose digits. PyTorch advises against it.

Ignore it if a custom backward function needs the context.

Source: https://docs.pytorch.org/docs/stable/amp.html#torch.autocast

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.steps import is_autocast
from surestep.doctor.source.trace import Program
from surestep.doctor.source.training import describe, find_actions
from surestep.doctor.source.values import last_name

SEVERITY = "warning"
FIX = "Put only the forward pass and the loss into autocast, and call backward() after it."


def check(program: Program) -> Iterator[Problem]:
    """Find backward passes in the context of autocast."""
    for trace in program.traces:
        for action in find_actions(trace):
            contexts = [c for c in action.event.contexts if last_name(c) == "autocast"]
            if action.kind == "backward" and contexts and is_autocast(contexts[-1]):
                yield at_event(
                    action.event,
                    f"`{action.event.text}` runs inside `{describe(contexts[-1])}`.",
                    context_line=getattr(contexts[-1].node, "lineno", None),
                )
