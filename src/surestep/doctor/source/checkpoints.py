"""What a script saves to files, and what it loads from them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from surestep.doctor.source.trace import Event, Trace
from surestep.doctor.source.training import is_same
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Item,
    Value,
    last_name,
    walk,
)

EPOCH_KEY = re.compile(r"(^|_)(epochs?|steps?|iter|iters|iteration|iterations|iter_num)(_|$)")
RANK = re.compile(
    r"rank|main|master|leader|chief|primary|is_local|is_world|world|local|node|proc|coordinator",
    re.IGNORECASE,
)


@dataclass(frozen=True, eq=False)
class Save:
    """A call of `torch.save`.

    Attributes:
        event: the call.
        value: what is saved.
        path: the file.
    """

    event: Event
    value: Value
    path: Value | None

    def entries(self) -> dict[str, Value]:
        """Return what is saved under each name, if a dict is saved."""
        if not isinstance(self.value, Collection) or self.value.type != "dict":
            return {}
        return {str(key): value for key, value in self.value.entries.items()}


def find_saves(trace: Trace) -> list[Save]:
    """Return the calls of `torch.save` in a trace."""
    saves = []
    for event, call in trace.calls:
        if call.path == "torch.save" and not call.has_unknown_arguments:
            value = call.argument(0, "obj")
            if value is not None:
                saves.append(Save(event, value, call.argument(1, "f")))
    return saves


def find_loads(trace: Trace) -> list[Event]:
    """Return the calls of `torch.load` in a trace."""
    calls = ((event, event.call) for event in trace.events)
    return [event for event, call in calls if call is not None and call.path == "torch.load"]


def find_restores(trace: Trace) -> list[tuple[Event, Value, Value]]:
    """Return the calls of `load_state_dict`: the event, the object, and the state."""
    restores = []
    for event, call in trace.calls:
        if call.path == ".load_state_dict" and call.receiver is not None:
            state = call.argument(0, "state_dict")
            if state is not None:
                restores.append((event, call.receiver, state))
    return restores


def entry_of(value: Value | None) -> tuple[Call, str | None] | None:
    """Return the `torch.load` that a value comes from, and under which name it was saved.

    The name is None for the whole of what was loaded.
    """
    match value:
        case Call(path="torch.load"):
            return value, None
        case Item(base=Call(path="torch.load") as loaded, index=Constant(value=name)):
            return loaded, str(name)
        case Call(path=".get" | ".pop", receiver=Call(path="torch.load") as loaded):
            name = value.argument(0, "key")
            return (loaded, str(name.value)) if isinstance(name, Constant) else None
    return None


def depends_on_rank(value: Value | None) -> bool:
    """Return whether a value may differ between ranks, as far as its names show."""
    if value is None:
        return False
    return any(RANK.search(last_name(part)) for part in walk(value)) or any(
        isinstance(part, Constant) and isinstance(part.value, str) and RANK.search(part.value)
        for part in walk(value)
        if part is not value
    )


def is_same_file(a: Value | None, b: Value | None) -> bool:
    """Return whether two names of files are the same in each run."""
    if a is None or b is None:
        return False
    if isinstance(a, Constant) and isinstance(b, Constant):
        return bool(a.value == b.value)
    if is_same(a, b):
        return True
    if type(a) is not type(b) or not a.inputs or len(a.inputs) != len(b.inputs):
        return False
    is_same_kind = last_name(a) == last_name(b)
    return is_same_kind and all(map(is_same_file, a.inputs, b.inputs))
