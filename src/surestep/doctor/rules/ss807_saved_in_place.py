"""The only checkpoint is overwritten in place.

`torch.save` empties the file before it writes it. If the process is killed while it writes, or the
disk is full, the old checkpoint is gone and the new one is incomplete. The run, which resumes from
that file, cannot be resumed. Preemption and out-of-memory kills happen at any time.

Ignore it if another copy is made. A script that does not resume from the file is not reported.

Source: https://docs.python.org/3/library/os.html#os.replace

Wrong:

    import os
    import tempfile

    import torch

    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    start = 0
    if os.path.exists(path):
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
    for epoch in range(start, 2):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        weights, moments = model.state_dict(), optimizer.state_dict()
        torch.save({"model": weights, "optimizer": moments, "epoch": epoch + 1}, path)

Right:

    import os
    import tempfile

    import torch

    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if os.path.exists(path):
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
"""

import re
from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.source.checkpoints import (
    Save,
    find_loads,
    find_restores,
    find_saves,
    is_same_file,
)
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe, is_optimizer
from surestep.doctor.source.values import Element, is_made_from, walk

SEVERITY = "warning"
FIX = 'Save to path + ".tmp" and then call os.replace(path + ".tmp", path), which is atomic.'
_COPIES = re.compile(r"\b(replace|rename|move|copy|copyfile|copy2|symlink|link|upload\w*)\(")


def check(program: Program) -> Iterator[Problem]:
    """Find checkpoints that a loop overwrites and that the script resumes from."""
    for trace in program.traces:
        saves = find_saves(trace)
        if not saves or program.contains(_COPIES):
            continue
        for save in saves:
            if not save.event.loops or _changes_in_loop(save) or not _is_resumed(trace, save):
                continue
            others = [s for s in saves if _has_optimizer(s) and not is_same_file(s.path, save.path)]
            if _has_optimizer(save) and not others:
                yield at_event(
                    save.event,
                    f"`{describe(save.path)}` is the only checkpoint, and a crash while it is "
                    "written leaves none.",
                )


def _changes_in_loop(save: Save) -> bool:
    """Return whether each pass of the loop may write a different file."""
    return save.path is None or any(isinstance(part, Element) for part in walk(save.path))


def _has_optimizer(save: Save) -> bool:
    return any(
        is_optimizer(getattr(part, "receiver", None))
        for part in walk(save.value)
        if getattr(part, "path", "") == ".state_dict"
    )


def _is_resumed(trace: Trace, save: Save) -> bool:
    """Return whether an optimizer is restored from the same file."""
    loads = [event.call for event in find_loads(trace) if event.call is not None]
    same = [load for load in loads if is_same_file(load.argument(0, "f"), save.path)]
    restored = [state for _, receiver, state in find_restores(trace) if is_optimizer(receiver)]
    return any(is_made_from(state, load) for state in restored for load in same)
