"""The script uses the deprecated names of automatic mixed precision.

`torch.cuda.amp.autocast`, `torch.cuda.amp.GradScaler` and `torch.cpu.amp.autocast` do the same as
`torch.amp.autocast` and `torch.amp.GradScaler` with a device. They print a warning and will be
removed from PyTorch.

Ignore it if the script must run with PyTorch older than 2.3. A script that imports the new names
first, and the old ones as a fallback, is not reported.

Source: https://docs.pytorch.org/docs/stable/amp.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        with torch.cuda.amp.autocast(enabled=False):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for _ in range(10):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.edits import insert_argument, insert_before, replace
from surestep.doctor.finding import Edit
from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.files import SourceFile
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.values import Call

SEVERITY = "info"
FIXABLE = True
FIX = 'Use torch.amp.autocast("cuda") and torch.amp.GradScaler("cuda").'
# With the new name, these may see another class, or another type of numbers.
_DEPENDS_ON_CLASS = re.compile(r"isinstance\([^)]*GradScaler|set_autocast")
_OLD = {
    "torch.cuda.amp.autocast": 'torch.amp.autocast("cuda")',
    "torch.cuda.amp.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.cuda.amp.autocast_mode.autocast": 'torch.amp.autocast("cuda")',
    "torch.cuda.amp.grad_scaler.GradScaler": 'torch.amp.GradScaler("cuda")',
    "torch.cpu.amp.autocast": 'torch.amp.autocast("cpu")',
}


def check(program: Program) -> Iterator[Problem]:
    """Find calls by an old name that do not depend on the version of PyTorch."""
    for trace in program.traces:
        calls = [(event, event.call) for event in trace.events]
        for event, call in calls:
            if call is None or call.path not in _OLD or event.branches:
                continue
            is_fallback = any(
                other is not None and other.node is call.node
                for _, other in calls
                if other is not call
            )
            if not is_fallback:
                yield at_event(
                    event,
                    f"`{call.path}` is deprecated: it is `{_OLD[call.path]}` now.",
                    edits=_rename(event, call, program),
                )


def _rename(event: Event, call: Call, program: Program) -> tuple[Edit, ...]:
    """Return the edits that call the new name with the same arguments."""
    node, file = event.node, event.file
    if not isinstance(node, ast.Call) or call.has_unknown_arguments or file is not program.file:
        return ()
    if not _imports_torch(file) or _DEPENDS_ON_CLASS.search(file.text):
        return ()
    new, _, device = _OLD[call.path].partition("(")
    first = insert_argument(file, node, device.rstrip(")"))
    if first is None:
        return ()
    edits = [replace(file, node.func, new)]
    if call.name == "autocast" and node.args:  # its other parameters have another order now
        first = Edit(first.start, first.end, f"{first.text}enabled=")
        for argument, name in zip(node.args[1:], ("dtype", "cache_enabled"), strict=False):
            edits.append(insert_before(file, argument, f"{name}="))
    return (*edits, first)


def _imports_torch(file: SourceFile) -> bool:
    """Return whether `torch` is certainly the package everywhere in a file."""
    is_imported = any(
        isinstance(node, ast.Import)
        and any(alias.name == "torch" and alias.asname is None for alias in node.names)
        for node in file.tree.body
    )
    return is_imported and not any(
        isinstance(node, ast.Name) and node.id == "torch" and not isinstance(node.ctx, ast.Load)
        for node in ast.walk(file.tree)
    )
