"""What a script saves to files, and what it loads from them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from surestep.doctor.source.trace import Event, Trace
from surestep.doctor.source.training import is_same
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Function,
    Item,
    Unknown,
    Value,
    last_name,
    walk,
)

EPOCH_KEY = re.compile(r"(^|_)(epochs?|steps?|iter|iters|iteration|iterations|iter_num)(_|$)")
_RANK = re.compile(
    r"rank|main|master|leader|chief|primary|is_local|is_world|world|local|node|proc|coordinator",
    re.IGNORECASE,
)
_RANK_FUNCTION = re.compile(  # `main` and `main_worker` run on all ranks
    r"rank|master|leader|chief|primary|coordinator|main_(proc|only|node)|(on|only|is|if|by)_main",
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


def is_restored_from(state: Value, load: Call) -> bool:
    """Return whether a state was made from what a `torch.load` returned."""
    return any(part is load for part in walk(state))


def holds_model_state(value: Value) -> bool:
    """Return whether a saved value has the state of an object, as `state_dict()` returns it."""
    return any(isinstance(part, Call) and part.name == "state_dict" for part in walk(value))


def depends_on_rank(value: Value | None) -> bool:
    """Return whether a value may differ between ranks, as far as its names show."""
    if value is None:
        return False
    return any(_RANK.search(last_name(part)) for part in walk(value)) or any(
        isinstance(part, Constant) and isinstance(part.value, str) and _RANK.search(part.value)
        for part in walk(value)
        if part is not value
    )


def may_be_limited_to_one_rank(event: Event) -> bool:
    """Return whether an event may happen on one rank only.

    A condition is known to be the same on all ranks only if it is computed here, so that a bare
    parameter such as `save` may mean `rank == 0`.
    """
    for branch in event.branches:
        if branch.test is None or depends_on_rank(branch.test) or _is_bare(branch.test):
            return True
        node = getattr(branch.node, "test", branch.node)
        if isinstance(node, ast.expr) and _RANK.search(ast.unparse(node)):
            return True
    if any(depends_on_rank(context) for context in event.contexts):
        return True
    if any(_RANK_FUNCTION.search(function.name) for function in event.stack):
        return True
    decorators = (part for function in event.stack for part in function.decorators)
    return any(_RANK.search(last_name(decorator)) for decorator in decorators)


def _is_bare(test: Value) -> bool:
    return any(isinstance(part, Unknown) for part in (test, *test.inputs)) and not isinstance(
        test, (Attribute, Item)
    )


def is_every_file_known(path: Value | None) -> bool:
    """Return whether the name of a file is made here, not given as a parameter of a function."""
    if path is None:
        return False
    return not any(isinstance(part, (Unknown, Function)) for part in walk(path))


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
