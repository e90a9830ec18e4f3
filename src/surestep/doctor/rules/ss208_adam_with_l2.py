"""`Adam(weight_decay=...)` is an L2 penalty, not the weight decay that is usually meant.

Adam adds the penalty to the gradient and then divides it by the size of past gradients. So weights
with large gradients decay less than others. AdamW decays all weights by the same factor, which
generalises better in most tasks. Its best value differs from that of the penalty.

Ignore it if you reproduce a result that was trained like this. Graph networks usually are: a script
that imports torch_geometric or dgl is not reported.

Source: https://arxiv.org/abs/1711.05101

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.trace import Program
from surestep.doctor.source.values import Call, Collection, Constant

SEVERITY = "info"
FIX = "Use torch.optim.AdamW, and choose the weight decay for it."
_GRAPHS = re.compile(r"^\s*(import|from) (torch_geometric|dgl)\b", re.MULTILINE)


def check(program: Program) -> Iterator[Problem]:
    """Find Adam with a weight decay above 0."""
    for trace in program.traces:
        for event, call in trace.calls:
            if call.path != "torch.optim.Adam" or call.has_unknown_arguments:
                continue
            if "decoupled_weight_decay" in call.keywords:
                continue
            decay = _find_decay(call)
            if decay is not None and not program.contains(_GRAPHS):
                yield at_event(
                    event,
                    f"Adam with weight_decay={decay} adds an L2 penalty to the gradients.",
                    weight_decay=decay,
                )


def _find_decay(call: Call) -> float | None:
    given = [call.argument(4, "weight_decay")]
    groups = call.argument(0, "params")
    if isinstance(groups, Collection):
        for group in groups.elements:
            if isinstance(group, Collection) and group.type == "dict":
                given.append(group.entries.get("weight_decay"))
    for value in given:
        if (
            isinstance(value, Constant)
            and isinstance(value.value, (int, float))
            and value.value > 0
        ):
            return float(value.value)
    return None
