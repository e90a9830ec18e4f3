"""Whether a module is in train mode or eval mode, as far as the source shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from surestep.doctor.source.doubts import note
from surestep.doctor.source.modules import FORWARD_METHODS, contains
from surestep.doctor.source.trace import Branch, Event, SourceLoop, Trace
from surestep.doctor.source.training import describe, is_same, may_be_same, strip
from surestep.doctor.source.values import (
    Attribute,
    Call,
    Collection,
    Constant,
    Either,
    Element,
    Function,
    Instance,
    Operation,
    Unknown,
    Value,
    walk,
)

# Methods of modules, and functions, that leave the mode as it is.
_HARMLESS = frozenset(
    "() parameters named_parameters state_dict load_state_dict to cuda cpu half float double "
    "bfloat16 zero_grad modules named_modules children named_children buffers named_buffers apply "
    "requires_grad_ register_forward_hook register_buffer append add prepare setup setup_module "
    "save print len next iter list isinstance id type str hasattr getattr summary watch backward "
    "step update update_parameters log save_pretrained gradient_checkpointing_enable no_sync join "
    "accumulate unwrap_model clip_grad_norm_".split()
)
_READS = re.compile(r"^(get|is|has|save|count|log|print)_")


@dataclass(frozen=True, eq=False)
class Switch:
    """A call that changes the mode of a module, or may change it.

    Attributes:
        event: the call, or the assignment of `training`.
        is_training: the new mode; None if it is not certain that the mode of the module changes,
            or how.
    """

    event: Event
    is_training: bool | None


def find_switch(trace: Trace, event: Event, model: Value, *, is_training: bool) -> Switch | None:
    """Return the call that put a module into a mode in which it is when an event happens.

    Both the first pass through the loops around the event and later ones are followed. The answer
    is None unless the module certainly is in this mode in one of them.
    """
    switches = find_switches(trace, model)
    at = trace.index(event)
    before = [s for s in switches if trace.index(s.event) < at and _agree(s.event, event)]
    after = [s for s in switches if trace.index(s.event) > at]
    for switch in [*before[-1:], *after]:
        if switch.is_training is None:
            note(f"may change the mode of `{describe(model)}`", switch.event, event)
    if before and _is_certain(before[-1].event, event) and before[-1].is_training is is_training:
        return before[-1]
    for loop in reversed(event.loops):
        if any(loop in switch.event.loops for switch in before):
            return None
        inside = [s for s in after if loop in s.event.loops]
        if any(_is_in_one_pass(s.event, event) for s in inside):
            return None
        later = [s for s in inside if not _leaves(s.event, loop, event)]
        if later:
            return later[-1] if later[-1].is_training is is_training else None
    return None


def find_lasting_switch(
    trace: Trace, event: Event, model: Value, *, is_training: bool
) -> Switch | None:
    """Return the call that puts a module into a mode in some passes through a loop, and for good.

    It is before an event in the loop, in which nothing else changes the mode: in later passes the
    event happens in this mode, even if the call is under a condition.
    """
    switches = find_switches(trace, model)
    at = trace.index(event)
    for loop in reversed(event.loops):
        inside = [s for s in switches if loop in s.event.loops]
        if any(_is_in_one_pass(s.event, event) for s in inside) or _switches_parts(trace, loop):
            return None
        if inside:
            before = [s for s in inside if trace.index(s.event) < at and _agree(s.event, event)]
            is_lasting = all(
                s.is_training is is_training and not _leaves(s.event, loop, event) for s in inside
            )
            return before[-1] if before and is_lasting else None
    return None


def _switches_parts(trace: Trace, loop: SourceLoop) -> bool:
    """Return whether a loop calls `train()` of layers that it iterates over, or of the class."""
    calls = [event.call for event in trace.events if loop in event.loops]
    return any(
        call is not None
        and call.name == "train"
        and (isinstance(strip(call.receiver), Element) or call.path == "torch.nn.Module.train")
        for call in calls
    )


def find_switches(trace: Trace, model: Value) -> list[Switch]:
    """Return what changes the mode of a module, or may do so, in order."""
    found = (_classify(event, model) for event in trace.events)
    switches = [switch for switch in found if switch is not None]
    certain = {_place(switch) for switch in switches if switch.is_training is not None}
    return [s for s in switches if s.is_training is not None or _place(s) not in certain]


def _place(switch: Switch) -> tuple[object, ...]:
    """Return what the events of one call share, which are one for each value of its receiver."""
    event = switch.event
    return event.node, event.loops, event.branches, event.stack


def _classify(event: Event, model: Value) -> Switch | None:
    if event.kind == "store" and isinstance(event.target, ast.Attribute):
        if event.target.attr == "training" and _may_hold(event.base, model):
            return Switch(event, None)
        return None
    call = event.call
    if call is None:
        return None
    if call.is_method and call.name in ("train", "eval") and len(call.args) <= 1:
        return _classify_switch(event, call, model)
    return Switch(event, None) if _is_given(call, model) else None


def _classify_switch(event: Event, call: Call, model: Value) -> Switch | None:
    target = call.receiver
    if is_same(target, model) or contains(target, model):
        mode = call.argument(0, "mode")
        if mode is None:
            return Switch(event, call.name == "train")
        known = isinstance(mode, Constant) and isinstance(mode.value, bool)
        return Switch(event, bool(mode.value) if known else None)  # type: ignore[attr-defined]
    if contains(model, target) or _may_hold(target, model):
        return Switch(event, None)
    return None


def _may_hold(value: Value | None, model: Value) -> bool:
    """Return whether two values may be the same module, or one a part of the other."""
    value, model = strip(value), strip(model) or model
    if isinstance(value, Attribute) and isinstance(model, Attribute):
        return not (is_same(value.base, model.base) and value.name != model.name)
    if isinstance(value, Unknown) and isinstance(model, Unknown):
        return bool(set(value.name.split("_")) & set(model.name.split("_")))
    return may_be_same(value, model)


def _is_given(call: Call, model: Value) -> bool:
    """Return whether a function that is not followed gets the module, and may switch it."""
    if (
        call.path in FORWARD_METHODS
        or call.name in _HARMLESS
        or _READS.match(call.name)
        or call.path.startswith("torch.")
    ):
        return False
    if isinstance(call.receiver, Function):
        owner = call.receiver.owner
        if owner is not None and (is_same(owner, model) or contains(owner, model)):
            return True
    if call.is_method and is_same(call.receiver, model) and not call.name.startswith("_"):
        return True
    given = call.arguments
    return any(
        is_same(part, model) or contains(part, model) for found in given for part in _parts(found)
    )


def _parts(value: Value) -> Iterator[Value]:
    match value:
        case Collection(elements=parts) | Either(options=parts):
            yield from parts
        case Operation(operator="*args", operands=parts):
            yield from parts
        case Function(owner=Instance() as owner):
            yield owner
        case _:
            yield value


def _agree(first: Event, second: Event) -> bool:
    """Return whether both events can happen in one pass."""
    taken = {id(branch.node): branch.is_taken for branch in second.branches}
    return all(taken.get(id(b.node), b.is_taken) == b.is_taken for b in first.branches)


def _is_certain(first: Event, second: Event) -> bool:
    """Return whether the first event happens whenever the second does."""
    around = {(id(branch.node), branch.is_taken) for branch in second.branches}
    return all((id(b.node), b.is_taken) in around for b in first.branches)


def _leaves(event: Event, loop: SourceLoop, other: Event) -> bool:
    """Return whether a loop ends after an event, so that no pass follows."""
    inside = set(map(id, ast.walk(loop.node)))
    branches = [branch for branch in event.branches if branch not in other.branches]
    return any(id(b.node) in inside and _ends_in_leave(b) for b in branches)


def _is_in_one_pass(event: Event, other: Event) -> bool:
    """Return whether an event may be in one pass only, the last: `if i == len(loader) - 1`."""
    tests = [branch.test for branch in event.branches if branch not in other.branches]
    found = [part for test in tests if test is not None for part in walk(test, 20)]
    operators = {part.operator for part in found if isinstance(part, Operation)}
    return "==" in operators and "%" not in operators


def _ends_in_leave(branch: Branch) -> bool:
    body: Sequence[ast.stmt] = ()
    if isinstance(branch.node, ast.If):
        body = branch.node.body if branch.is_taken else branch.node.orelse
        if branch.is_guard:
            return False
    return bool(body) and isinstance(body[-1], (ast.Break, ast.Return, ast.Raise))
