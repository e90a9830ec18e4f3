"""The order of the parts of a training step within one pass of its loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from surestep.doctor.source.doubts import note
from surestep.doctor.source.nodes import describe_source, find_names
from surestep.doctor.source.operators import BUILTINS
from surestep.doctor.source.trace import Branch, Event, Trace, once_per_trace
from surestep.doctor.source.training import (
    Action,
    find_actions,
    is_made_by,
    is_optimizer,
    is_same,
    is_scaler,
    options_of,
)
from surestep.doctor.source.values import (
    Call,
    Collection,
    Constant,
    Definition,
    Function,
    Instance,
    Operation,
    Value,
)

_MAY_TRAIN = re.compile(r"backward|step|train|fit|optimi|closure|learn|grads|gradient", re.I)
_KNOWN = re.compile(r"^(torch|torchvision|numpy|math|time|logging|tqdm|os|sys|random|wandb)\.")
_HARMLESS = re.compile(r"^(requires|set)_grad|load|data|transform|sampler|last_step|pretrain", re.I)
_OF_MODULES = frozenset(
    "parameters named_parameters modules children train eval to cuda cpu float half double "
    "state_dict load_state_dict requires_grad_ apply compile buffers log log_dict print".split()
)
_REPEATED = ("backward", "zero_grad")
_CHANGES_GRADIENTS = frozenset("backward grad vjp jvp value_and_grad setattr __setattr__".split())


@once_per_trace
def _find_opaque(trace: Trace) -> list[int]:
    """Return the positions of the events that may be parts of training steps unseen."""
    known = {action.event for action in find_actions(trace)}
    return [i for i, e in enumerate(trace.events) if e not in known and may_train(e)]


@dataclass(eq=False)
class StepOrder:
    """The parts of training steps of a trace, and what may hide further ones.

    Attributes:
        trace: of a script or a function.
    """

    trace: Trace
    actions: list[Action] = field(init=False)

    def __post_init__(self) -> None:
        self.actions = find_actions(self.trace)

    def find_pass(self, event: Event) -> list[Action]:
        """Return the actions in the innermost loop around an event, in order."""
        if event.loop is None:
            return self.actions
        return [action for action in self.actions if event.loop in action.event.loops]

    def between(self, first: Event, last: Event) -> list[Action]:
        """Return the actions after an event and before another."""
        start, end = self.trace.index(first), self.trace.index(last)
        return [a for a in self.actions if start < self.trace.index(a.event) < end]

    def is_before(self, first: Event, last: Event) -> bool:
        """Return whether an event comes first."""
        return self.trace.index(first) < self.trace.index(last)

    def is_clear(self, first: Event, last: Event) -> bool:
        """Return whether all that happens between two events is understood."""
        start, end = self.trace.index(first), self.trace.index(last)
        return self._is_clear([p for p in _find_opaque(self.trace) if start < p < end], first, last)

    def is_clear_before(self, event: Event) -> bool:
        """Return whether all that happens before an event is understood."""
        at = self.trace.index(event)
        return self._is_clear([p for p in _find_opaque(self.trace) if p < at], event)

    @property
    def is_all_clear(self) -> bool:
        """Whether all that happens in the trace is understood."""
        return self._is_clear(_find_opaque(self.trace))

    def is_clear_inside(self, event: Event) -> bool:
        """Return whether all that happens in the loop around an event is understood."""
        events = self.trace.events
        return self._is_clear(
            [
                position
                for position in _find_opaque(self.trace)
                if event.loop is None or event.loop in events[position].loops
            ],
            event,
        )

    def _is_clear(self, positions: list[int], *about: Event) -> bool:
        """Return whether there are no events that are not understood; the first is noted."""
        if positions:
            cause = self.trace.events[positions[0]]
            note("may be any part of a training step: it is not followed", cause, *about)
        return not positions


def happens_before(first: Event, last: Event) -> bool:
    """Return whether an earlier event happens in each pass in which the last one does."""
    return first.loops == last.loops and set(first.branches) <= set(last.branches)


def is_part_of(first: Event, last: Event) -> bool:
    """Return whether each pass in which the last event happens has the first, once or in a loop."""
    is_inside = first.loops[: len(last.loops)] == last.loops
    return is_inside and set(first.branches) <= set(last.branches)


class StepWindow(NamedTuple):
    """N passes of a loop with a backward pass each, of which one takes a step.

    Attributes:
        step: the step.
        branch: that chooses the pass, such as `if step % N == 0`.
        size: N.
        text: N as the branch writes it.
        counted: the variables of the number that N divides.
        actions: of a pass.
        backwards: the backward passes among them.
    """

    step: Action
    branch: Branch
    size: Value
    text: str
    counted: set[str]
    actions: list[Action]
    backwards: list[Action]

    @property
    def has_one_step(self) -> bool:
        """Whether a pass has no other step."""
        return sum(action.is_step for action in self.actions) == 1


def find_windows(order: StepOrder) -> Iterator[StepWindow]:
    """Yield the windows of the steps that a branch chooses for one of N passes."""
    for step in order.actions:
        found = _find_branch(step.event) if step.is_step else None
        if found is not None:
            actions = order.find_pass(step.event)
            backwards = [action for action in actions if action.kind == "backward"]
            if backwards and not any(found[0] in action.event.branches for action in backwards):
                yield StepWindow(step, *found, actions, backwards)


def find_range_windows(order: StepOrder) -> Iterator[tuple[Action, Action, ast.expr]]:
    """Yield the only backward pass of `for _ in range(N)`, the step after that loop, and N."""
    for backward in order.actions:
        loop = backward.event.loop
        count = None if loop is None else loop.iterated
        if backward.kind != "backward" or not isinstance(count, Call) or count.path != "range":
            continue
        node = backward.event.node  # one event for each loss that it may be of
        inside = [a for a in order.find_pass(backward.event) if a.event.node is not node]
        if not isinstance(count.node, ast.Call) or len(count.args) != 1:
            continue
        if any(a.is_step or a.kind in _REPEATED for a in inside):
            continue
        for step in order.actions:
            is_after = order.is_before(backward.event, step.event)
            if step.is_step and is_after and step.event.loops == backward.event.loops[:-1]:
                between = order.between(backward.event, step.event)
                others = [a for a in between if a.event.node not in (node, step.event.node)]
                is_next = not any(a.is_step or a.kind in _REPEATED for a in others)
                if is_next and order.is_clear(backward.event, step.event):
                    yield backward, step, count.node.args[0]


def has_clip(order: StepOrder, step: Action) -> bool:
    """Return whether gradients are clipped between the last backward pass and a step."""
    before = [a for a in order.actions if order.is_before(a.event, step.event)]
    last = next((a for a in reversed(before) if a.kind in ("backward", "clip")), None)
    return last is not None and last.kind == "clip"


def find_running_counter(order: StepOrder, backward: Action) -> str:
    """Return the counter of micro-batches by which a loss is divided; "" if it is not.

    Each pass of the loop adds 1 to it, and a branch that compares it sets it to 0 again.
    """
    for loss in options_of(unscale(backward.target)):
        if not isinstance(loss, Operation) or not isinstance(loss.node, ast.BinOp):
            continue
        name, loop = ast.unparse(loss.node.right), backward.event.loop
        stores = [
            event
            for event in order.trace.events
            if event.loop is loop and event.target is not None and ast.unparse(event.target) == name
        ]
        is_counted = any(event.kind == "augment" for event in stores)
        is_reset = any(
            isinstance(event.value, Constant)
            and event.value.value == 0
            and any(name in _describe_test(branch) for branch in event.branches)
            for event in stores
        )
        if loss.operator == "/" and loop is not None and is_counted and is_reset:
            return name
    return ""


def _describe_test(branch: Branch) -> str:
    return describe_source(None if branch.test is None else branch.test.node)


def _find_branch(event: Event) -> tuple[Branch, Value, str, set[str]] | None:
    """Return the branch that chooses one of N passes, N, and the variables that it counts by."""
    for branch in reversed(event.branches):
        for part in _parts_of(branch.test):
            if isinstance(part, Operation) and part.operator == "%":
                size = part.operands[-1]
                written = part.node.right if isinstance(part.node, ast.BinOp) else size.node
                counter = part.node.left if isinstance(part.node, ast.BinOp) else ast.Pass()
                return branch, size, describe_source(written), find_names(counter, ast.Load)
    return None


def _parts_of(test: Value | None) -> Iterator[Value]:
    for option in options_of(test):
        yield option
        if isinstance(option, Operation):
            for operand in option.operands:
                yield from _parts_of(operand)


def may_train(event: Event) -> bool:
    """Return whether an event that is not followed may be any part of a training step."""
    if event.kind in ("store", "augment"):
        return isinstance(event.target, ast.Attribute) and event.target.attr == "grad"
    call = event.call
    if call is None:
        return False
    if isinstance(call.receiver, Function):
        return _may_train_inside(call.receiver, set())
    if call.name in _CHANGES_GRADIENTS:
        return True
    if call.path in BUILTINS or _KNOWN.match(call.path):
        return call.path.startswith("torch.") and gets_optimizer(call) and not _only_reads(call)
    name = call.name if call.path != "()" else _name_of_called(call.receiver)
    if _MAY_TRAIN.search(name) and not _is_harmless(name, call):
        return True
    is_of_gradient = any(
        getattr(option, "name", "") == "grad" for option in options_of(call.receiver)
    )
    return is_of_gradient or gets_optimizer(call)


def _may_train_inside(function: Function, visited: set[Definition]) -> bool:
    """Return whether a function that is not followed may run a part of a training step.

    Its source shows the names of what it calls, and those functions of the project are read too.
    """
    definition = function.definition
    if definition in visited:
        return False
    visited.add(definition)
    for node in ast.walk(definition):
        if isinstance(node, ast.Attribute) and node.attr == "grad":
            return True
        if not isinstance(node, ast.Call):
            continue
        called = _find_called(node.func, function)
        if called is not None:
            if _may_train_inside(called, visited):
                return True
        elif _is_training_name(node):
            return True
    return False


def _find_called(node: ast.expr, function: Function) -> Function | None:
    """Return the function of the project that a call in a function calls, if that is certain."""
    found: Value | None = None
    match node:
        case ast.Name(id=name):
            found = function.scope.find(name)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            owner = function.owner
            found = owner.cls.find(name) if isinstance(owner, Instance) else None
    if not isinstance(found, Function):
        return None
    return found if found.owner is not None else replace(found, owner=function.owner)


def _is_training_name(node: ast.Call) -> bool:
    """Return whether a call has the name of a part of a training step, or is of no name."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    is_mode = name == "train" and all(isinstance(arg, ast.Constant) for arg in node.args)
    is_training = name in _CHANGES_GRADIENTS or bool(_MAY_TRAIN.search(name))
    return not name or (is_training and not is_mode and not _HARMLESS.search(name))


def _is_harmless(name: str, call: Call) -> bool:
    """Return whether the call of a name such as `train` or `train_loader` runs no step."""
    is_mode = name == "train" and all(isinstance(arg, Constant) for arg in call.args)
    return is_mode or bool(_HARMLESS.search(name))


def gets_optimizer(call: Call) -> bool:
    """Return whether an argument of a call is an optimizer or a scaler."""
    return any(is_optimizer(option) or is_scaler(option) for option in _arguments(call))


def _arguments(call: Call) -> list[Value]:
    found: list[Value] = []
    for value in call.arguments:
        found.append(value)
        if isinstance(value, Collection):
            found.extend(value.elements)
        elif isinstance(value, Operation) and value.operator == "*args":
            found.extend(value.operands)
    return found


def _only_reads(call: Call) -> bool:
    return call.path.startswith("torch.optim.") or call.name == "save"


def _name_of_called(value: Value | None) -> str:
    names = [getattr(option, "name", "") for option in options_of(value)]
    return " ".join(name for name in names if isinstance(name, str))


def is_scaled(loss: Value | None) -> bool:
    """Return whether a loss is the result of `scaler.scale()`."""
    options = options_of(loss)
    return bool(options) and all(
        isinstance(option, Call) and option.path == ".scale" and is_scaler(option.receiver)
        for option in options
    )


def unscale(loss: Value | None) -> Value | None:
    """Return what was given to `scaler.scale()`; any other loss itself."""
    return loss.argument(0, "") if isinstance(loss, Call) and is_scaled(loss) else loss


def is_enabled(value: Value | None) -> bool:
    """Return whether a scaler or a context may be enabled: not `enabled=False`."""
    return not any(
        isinstance(option, Call)
        and isinstance(given := option.argument(-1, "enabled"), Constant)
        and not given.value
        for option in options_of(value)
    )


def is_autocast(context: Value) -> bool:
    """Return whether a context is autocast, and may be enabled."""
    paths = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
    return is_made_by(context, *paths) and is_enabled(context)


def is_zeroed_by(action: Action, optimizer: Value | None) -> bool:
    """Return whether an action certainly zeroes all gradients of an optimizer."""
    if action.kind != "zero_grad" or action.target is None:
        return False
    if is_optimizer(action.target):
        return is_same(action.target, optimizer)
    return is_made_by(optimizer, "torch.optim.") and all(
        isinstance(made, Call)
        and isinstance(given := made.argument(0, "params"), Call)
        and given.path == ".parameters"
        and is_same(given.receiver, action.target)
        for made in options_of(optimizer)
    )


def is_measurement(clip: Action) -> bool:
    """Return whether a clip only computes the norm, with an infinite limit."""
    call = clip.event.call
    if call is None or call.has_unknown_arguments:
        return True
    limit = call.argument(1, "clip_value" if "value" in call.name else "max_norm")
    if limit is None or (isinstance(limit, Constant) and isinstance(limit.value, (int, float))):
        return isinstance(limit, Constant) and limit.value >= 1e6
    text = "" if limit.node is None else ast.unparse(limit.node)
    return bool(re.search(r"\binf\b|infinity|get_scale", text, re.I))
