"""A checkpoint is loaded onto the device it was saved from, or may run code from its file.

Without `map_location`, `torch.load` puts each tensor on the device from which it was saved. If rank
0 saved it, all ranks load onto the first GPU. A machine without a GPU cannot load it at all. With
`weights_only=False`, a file can run any code when it is loaded; a state dict does not need that.

Ignore it if the file is always read on the machine that wrote it. A script that uses one fixed
device, or loads what the same run has saved, is not reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.load.html

Wrong:

    import os

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(4, 1).to(device)
    if os.path.exists("last.pt"):
        model.load_state_dict(torch.load("last.pt"))

Right:

    import io

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(4, 1).to(device)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
"""

import ast
import re
from collections.abc import Iterator

from surestep.doctor.edits import append_argument
from surestep.doctor.finding import Edit
from surestep.doctor.problem import Problem, at_node
from surestep.doctor.source.checkpoints import (
    find_loads,
    find_restores,
    find_saves,
    is_same_file,
)
from surestep.doctor.source.trace import Event, Program, Trace
from surestep.doctor.source.training import (
    describe,
    is_made_by,
    is_model,
    is_scaler,
    is_scheduler,
)
from surestep.doctor.source.values import Call, Constant, Value, is_made_from

SEVERITY = "warning"
FIXABLE = True
FIX = 'Write torch.load(path, map_location="cpu", weights_only=True).'
_DISTRIBUTED = ("init_process_group", "DistributedDataParallel", "DDP")


def check(program: Program) -> Iterator[Problem]:
    """Find loaded states of a script that runs on several devices, and unsafe loads."""
    reason, is_distributed = _why_devices_differ(program)
    for trace in program.traces:
        restores = [r for r in find_restores(trace) if _has_tensors(r[0], r[1])]
        for event in find_loads(trace):
            call = event.call
            if call is None or call.has_unknown_arguments:
                continue
            states = [state for _, _, state in restores if is_made_from(state, call)]
            is_elsewhere = is_distributed or not _is_saved_before(trace, event)
            if states and reason and is_elsewhere and not _has_location(trace, call):
                message = f"`{describe(call)}` has no map_location: {reason}."
                yield at_node(event.node, event.file, message, edits=_load_on_cpu(event, restores))
            elif any(state is call for state in states) and _is_unsafe(call):
                text = "the file can run code, and a state dict does not need weights_only=False"
                yield at_node(event.node, event.file, f"`{describe(call)}`: {text}.")


def _load_on_cpu(load: Event, restores: list[tuple[Event, Value, Value]]) -> tuple[Edit, ...]:
    """Return the edit that loads onto the CPU what goes at once to the devices of its object."""
    if not isinstance(load.node, ast.Call):
        return ()
    for restore, restored, _ in restores:
        node = restore.node
        if not isinstance(node, ast.Call) or node.args != [load.node]:
            continue
        is_copied = is_model(restored) or is_made_by(restored, "torch.optim.")
        if is_copied and all(word.arg == "strict" for word in node.keywords):
            edit = append_argument(load.file, load.node, 'map_location="cpu"')
            return () if edit is None else (edit,)
    return ()


def _has_tensors(restore: Event, restored: Value) -> bool:
    """Return whether an object may have tensors on a device: not a schedule or a GradScaler."""
    if is_scaler(restored) or is_scheduler(restored) or restore.call is None:
        return False
    return not re.search(r"scaler|sched", ast.unparse(restore.node).partition(".load_state")[0])


def _has_location(trace: Trace, load: Call) -> bool:
    """Return whether this or another load of the file, in another branch, has a location."""
    calls = (event.call for event in find_loads(trace))
    return any(
        call is not None
        and call.argument(1, "map_location") is not None
        and (call is load or is_same_file(call.argument(0, "f"), load.argument(0, "f")))
        for call in calls
    )


def _is_saved_before(trace: Trace, load: Event) -> bool:
    """Return whether the same run has written the file, so that its devices are still there."""
    path = load.call.argument(0, "f") if load.call is not None else None
    before = trace.events[: trace.index(load)]
    return any(is_same_file(save.path, path) for save in find_saves(trace) if save.event in before)


def _is_unsafe(call: Call) -> bool:
    option = call.argument(-1, "weights_only")
    return isinstance(option, Constant) and option.value is False


def _why_devices_differ(program: Program) -> tuple[str, bool]:
    """Return why a checkpoint is loaded on different devices, and whether ranks are the reason."""
    calls = [e.call for e in program.events if e.call and e.file is program.file]
    if any(call.name in _DISTRIBUTED for call in calls):
        return "every rank loads it onto the GPU of the rank that saved it", True
    if any(call.path == "torch.cuda.is_available" for call in calls):
        return "if it was saved on a GPU, a machine without one cannot load it", False
    return "", False
