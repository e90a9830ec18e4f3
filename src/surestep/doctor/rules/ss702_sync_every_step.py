"""The loss is read from the GPU in each step.

`loss.item()`, `float(loss)`, `print(loss)` and `if loss > x` wait until the GPU has finished all
work so far. Meanwhile no further kernels are queued, so the GPU is idle at the start of the next
step. The cost is a few percent for a large model, and most of the time for a small one.

Ignore it on a CPU, or if a step takes much longer than its Python code. Reading the loss every N
steps is not reported. Nor is a loop that tests for a loss that is not finite, a loop that evaluates
the model after each step, or a script that calls `torch.cuda.synchronize()` to measure time.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html

Wrong:

    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for _ in range(10):
        loss = model(torch.randn(8, 4, device=device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()

Right:

    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        loss = model(torch.randn(8, 4, device=device)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(loss.item())
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from surestep.base.user_code import is_surestep_file, is_user_file
from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.source.devices import moves_to_gpu
from surestep.doctor.source.trace import Event, Program, SourceLoop, Trace
from surestep.doctor.source.training import Action, find_actions, is_derived_with_graph, is_model
from surestep.doctor.source.values import Call, Operation, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "speed"
FIX = "Add up loss.detach() on the GPU, and read it every N steps."
_FEWEST = 10  # steps
_SHARE = 0.9  # of the steps, from the first read on
_MOST_LINES = 64
_HEARD = ("item", "tolist", "cpu", "numpy", "__float__", "__bool__")
_READS = (".item", ".tolist", ".cpu", ".numpy")
_COMPARISONS = ("<", ">", "<=", ">=")
_TESTS = ("isfinite", "isnan", "isinf")


def check(program: Program) -> Iterator[Problem]:
    """Find the first read of the loss in each training loop of a model that is on a GPU."""
    for trace in program.traces:
        if not _moves_model_to_gpu(trace) or _measures_time(trace):
            continue
        actions = find_actions(trace)
        backwards = [action for action in actions if action.kind == "backward"]
        loops = _find_waiting(trace, backwards)
        # With accumulation, a step belongs to another loop than its backward passes.
        often = [action.event for action in actions if action.is_step]
        for event in trace.events:
            if event.loop is None or event.loop in loops:
                continue
            is_often = any(
                event.loop is part.loop and set(event.branches) <= set(part.branches)
                for part in (*often, *(backward.event for backward in backwards))
            )
            if is_often and any(_reads(event, backward) for backward in backwards):
                loops.add(event.loop)
                yield at_event(event, f"`{event.text}` waits for the GPU in each step.")


def _moves_model_to_gpu(trace: Trace) -> bool:
    """Return whether a model is moved to a device that is not certainly the CPU."""
    return any(moves_to_gpu(call) and is_model(call.receiver) for _, call in trace.calls)


def _reads(event: Event, backward: Action) -> bool:
    """Return whether an event reads the loss of a backward pass."""
    value = event.value
    if event.kind == "test":
        is_comparison = isinstance(value, Operation) and value.operator in _COMPARISONS
        return is_comparison and any(_is_loss(part, backward) for part in value.inputs)
    if not isinstance(value, Call) or event.kind != "call":
        return False
    if value.path in _READS:
        return _is_loss(value.receiver, backward)
    if value.path == "float":
        return any(_is_loss(argument, backward) for argument in value.args)
    return value.path == "print" and any(_shows(part, backward) for part in value.args)


def _is_loss(value: Value | None, backward: Action) -> bool:
    if is_derived_with_graph(value, backward.target):
        return True
    is_detached = isinstance(value, Call) and value.path in (".detach", ".cpu", ".mean", ".sum")
    return is_detached and isinstance(value, Call) and _is_loss(value.receiver, backward)


def _shows(value: Value, backward: Action) -> bool:
    """Return whether a printed value is the loss, or a text with it."""
    is_text = isinstance(value, Operation) and value.operator in ("f-string", "?")
    parts = value.inputs if is_text else ()
    return _is_loss(value, backward) or any(_shows(part, backward) for part in parts)


def _measures_time(trace: Trace) -> bool:
    return any(event.call and event.call.name == "synchronize" for event in trace.events)


def _find_waiting(trace: Trace, backwards: list[Action]) -> set[SourceLoop]:
    """Return the loops that need a value from the GPU in each step."""
    loops = set()
    for event, call in trace.calls:
        if event.loop is None:
            continue
        # An evaluation reads its result as often as it happens.
        if call.name in _TESTS or (call.path == ".eval" and _is_after_step(event, backwards)):
            loops.add(event.loop)
    return loops


def _is_after_step(event: Event, backwards: list[Action]) -> bool:
    return any(
        event.loop is around.loop and set(event.branches) <= set(around.branches)
        for around in (backward.event for backward in backwards)
    )


class SyncEveryStepWatcher(Watcher):
    """Count the steps in which the script reads values of a device."""

    def __init__(self) -> None:
        # On a CPU a read costs nothing, and hearing it does.
        self.FUNCTIONS = (*_HEARD, "synchronize") if has_device() else ()
        self._reads: dict[Location, _Reads] = {}
        self._measures_time = False
        self._evaluated = self._evaluations = 0  # the last step with an evaluation; how many

    def on_mode(self, run: Script, module: Any, is_training: bool) -> None:
        # A part of a model, such as a frozen BatchNorm, may be in eval mode while it is trained.
        is_model = any(module is model for model in run.models)
        if is_model and not is_training and run.step != self._evaluated:
            self._evaluated, self._evaluations = run.step, self._evaluations + 1

    def on_call(self, run: Script, call: TorchCall) -> None:
        if call.name == "synchronize":
            self._measures_time = self._measures_time or _is_read_by_user()
        elif is_on_device(call["input"]) and _is_read_by_user():
            self.count(run)

    def count(self, run: Script) -> None:
        """Count a read of a value of a device by the line that is being executed."""
        location = run.locate()
        if location not in self._reads and len(self._reads) >= _MOST_LINES:
            return
        reads = self._reads.setdefault(location, _Reads(run.step))
        reads.count += 1
        if reads.last != run.step:
            reads.last, reads.steps = run.step, reads.steps + 1

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._measures_time or self._evaluations >= _SHARE * run.step:
            return
        for location, reads in self._reads.items():
            since = max(reads.steps, run.step - reads.first)
            line = linecache.getline(location.file, location.line)
            if since < _FEWEST or reads.steps < _SHARE * since or _is_needed(line):
                continue
            yield Problem(
                f"{reads.steps} of {since} steps waited here for the GPU to finish, to read a "
                "value.",
                {"steps": reads.steps, "reads": reads.count},
                location=location,
                since_step=reads.first + 1,
            )


@dataclass
class _Reads:
    """Reads in one line.

    Attributes:
        first: steps that were taken before the first.
        count: how many.
        steps: with at least one.
        last: of these steps.
    """

    first: int
    count: int = 0
    steps: int = 0
    last: int = -1


def has_device() -> bool:
    """Return whether this machine has a GPU on which a read waits."""
    import torch

    return torch.cuda.is_available()


def is_on_device(value: Any) -> bool:
    """Return whether reading a tensor waits for a device."""
    return getattr(getattr(value, "device", None), "type", "cpu") == "cuda"


def _is_needed(line: str) -> bool:
    """Return whether a line tests if a value is finite, or measures time."""
    return any(name in line for name in (*_TESTS, "synchronize"))


def _is_read_by_user() -> bool:
    """Return whether the user's source reads a value, and not a library, such as a GradScaler."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return True
        is_passed = is_surestep_file(file) or file.endswith(("_tensor.py", "_tensor_str.py"))
        if not is_passed and not file.endswith(("functools.py", "contextlib.py")):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False
