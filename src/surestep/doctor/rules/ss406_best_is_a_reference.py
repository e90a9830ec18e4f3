"""The state of the best model is kept without a copy, so it changes with the model.

`state_dict()` returns references to the parameters, and `best = model` is one more name of the
same model. Later steps update both. After the loop, `best` holds the last values, not the best.
Nothing fails. `{key: value for key, value in model.state_dict().items()}` has the same tensors. So
has it with `value.detach()`, and with `value.cpu()` while the model is on the CPU.

Ignore it if no step follows.

Source: https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best_loss, best_state = float("inf"), None
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if loss.item() < best_loss:
            best_loss = loss.item()
            best_state = model.state_dict()
    model.load_state_dict(best_state)

Right:

    import io

    import torch

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best, large = float("inf"), []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        if loss.item() < best:
            best = loss.item()
            large = [name for name, value in model.state_dict().items() if value.abs().max() > 0.1]
    torch.save(large, io.BytesIO())
"""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Location, Problem, at_event
from surestep.doctor.runtime.tally import Occurrence
from surestep.doctor.runtime.tensors import is_tensor
from surestep.doctor.source.trace import Branch, Event, Program, Trace
from surestep.doctor.source.training import describe, find_actions, is_model
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Either,
    Element,
    Item,
    Value,
    walk,
)
from surestep.doctor.source.wrapping import event_of
from surestep.doctor.watcher import Script, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = "Keep copy.deepcopy(model.state_dict()), or save it to a file at once."
_MOST_STATES = 64  # that are remembered

_BEST = re.compile(r"best|min|max|low|high", re.IGNORECASE)
_COPIES_TOP_ONLY = ("dict", "collections.OrderedDict", "copy.copy", ".copy")
_SHARES_MEMORY = (".detach", ".items", ".values")
_MAY_LEAVE_CPU = re.compile(
    r"cuda|mps|xpu|xla|npu|hpu|device|accelerat|fabric|lightning|prepare|\.to\(", re.IGNORECASE
)


def check(program: Program) -> Iterator[Problem]:
    """Find states that are kept in a training loop and used after it."""
    on_cpu = not program.contains(_MAY_LEAVE_CPU)
    for trace in program.traces:
        loops = {loop for a in find_actions(trace) if a.is_step for loop in a.event.loops}
        for index, event in enumerate(trace.events):
            if event.kind != "store" or event.loop not in loops or not _keeps_best(event):
                continue
            states = [value for value in _references(event.value, on_cpu) if _is_state(value)]
            for state in states:
                is_used = _is_used_later(trace, index, state, on_cpu)
                if is_used and _is_made_in(trace, state, event):
                    yield at_event(
                        event,
                        f"`{describe(state)}` holds references to the parameters: the steps that "
                        "follow change it.",
                    )


def _keeps_best(event: Event) -> bool:
    """Return whether an assignment depends on a comparison with the best so far."""
    match event.branches[-1:]:
        case (Branch(node=ast.If(test=test, body=[*_, last]), is_taken=True),):
            is_left = isinstance(last, (ast.Break, ast.Return))
            return not is_left and bool(_BEST.search(ast.unparse(test)))
    return False


def _is_state(value: Value) -> bool:
    return isinstance(value, Call) and value.path == ".state_dict" and not value.args


def _is_made_in(trace: Trace, state: Value, event: Event) -> bool:
    """Return whether the state is read in the loop, of a model that is made before it."""
    made = event_of(trace, state)
    if made is None or event.loop not in made.loops or not isinstance(state, Call):
        return False
    model = state.receiver
    while isinstance(model, (Attribute, Item)):
        model = model.base
    before = None if model is None else event_of(trace, model)
    return before is None or event.loop not in before.loops


def _is_used_later(trace: Trace, index: int, state: Value, on_cpu: bool) -> bool:
    """Return whether the state is loaded, saved or returned after the loop."""
    loop = trace.events[index].loop
    for event in trace.events[index + 1 :]:
        used = [event.value] if event.kind == "return" else []
        if event.call is not None and event.call.name in ("load_state_dict", "save"):
            used = [*event.call.args]
        is_later = loop not in event.loops
        if is_later and any(state in _references(value, on_cpu) for value in used):
            return True
    return False


def _references(value: Value, on_cpu: bool) -> list[Value]:
    """Return the values that share memory with a value: itself, and what it holds.

    Args:
        value: of the script.
        on_cpu: whether nothing leaves the CPU: `.cpu()` then copies no tensor of a model.
    """
    found: list[Value] = []
    waiting = [value]
    while waiting and len(found) < 100:
        value = waiting.pop()
        if any(value is known for known in found):
            continue
        found.append(value)
        match value:
            case Either() | Collection():
                waiting.extend(value.inputs)
            case Item(base=Element(of=Call(name="items")), index=Constant(value=0)):
                pass  # a name
            case Element(of=Call(name="items" | "values")) | Item() | Attribute(name="data"):
                waiting.append(value.inputs[0])
            case Call(path=path, receiver=Value() as base) if path in _SHARES_MEMORY:
                waiting.append(base)
            case Call(path=".cpu", receiver=Value() as base) if on_cpu and _is_of_model(base):
                waiting.append(base)
            case Call(path=path) if path in _COPIES_TOP_ONLY:
                waiting.extend(value.inputs)
    return found


def _is_of_model(value: Value) -> bool:
    """Return whether a value is from the state of a model that the script makes."""
    states = [part for part in walk(value) if _is_state(part)]
    return bool(states) and all(isinstance(s, Call) and is_model(s.receiver) for s in states)


@dataclass
class _Made(Occurrence):
    """A state that was made: one of its tensors, where, and in which step."""

    tensor: weakref.ref[Tensor]
    version: int
    location: Location
    since_step: int


class BestIsAReferenceWatcher(Watcher):
    """Find states of models that changed between `state_dict()` and their use."""

    def __init__(self) -> None:
        self._made: dict[int, _Made] = {}
        self._uses: list[tuple[_Made, int, str]] = []

    def after_state(self, run: Script, owner: Any, state: Any) -> None:
        from torch import nn

        tensor = _find_tensor(state)
        if not isinstance(owner, nn.Module) or tensor is None:
            return
        self._made = {key: made for key, made in self._made.items() if made.tensor() is not None}
        if len(self._made) < _MOST_STATES:
            at = run.locate(), run.step + 1
            self._made[id(tensor)] = _Made(weakref.ref(tensor), tensor._version, *at)

    def on_load_state(self, run: Script, owner: Any, state: Any) -> None:
        self._use(run, state, "loaded")

    def on_save(self, run: Script, value: Any, file: Any) -> None:
        parts = [value, *value.values()] if isinstance(value, Mapping) else []
        for part in parts:
            self._use(run, part, "saved")

    def _use(self, run: Script, state: Any, use: str) -> None:
        tensor = _find_tensor(state)
        made = None if tensor is None else self._made.get(id(tensor))
        if made is None or made.tensor() is not tensor or made.since_step > run.step:
            return
        # Parameters that are saved again and again are kept as references on purpose.
        is_chosen = use == "loaded" or made.since_step > 1
        is_changed = tensor is not None and tensor._version != made.version
        if is_changed and is_chosen and len(self._uses) < _MOST_STATES:
            self._uses.append((made, run.step, use))

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._uses:
            made, step, use = self._uses[0]
            made_at = made.since_step - 1
            yield made.report(
                f"The state of step {made_at} was {use} at step {step}: its tensors are those of "
                f"the model, which {step - made_at} steps had changed.",
                {"made": made_at, "used": step, "times": len(self._uses)},
            )


def _find_tensor(state: Any) -> Tensor | None:
    """Return the first floating-point tensor of a state."""
    values = state.values() if isinstance(state, Mapping) else ()
    return next((value for value in values if is_tensor(value) and value.is_floating_point()), None)
