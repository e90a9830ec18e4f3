"""The losses of PyTorch that a script computes, with what they are given."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from surestep.doctor.source.nodes import describe_source
from surestep.doctor.source.outputs import Origin
from surestep.doctor.source.trace import Event, Trace, once_per_trace
from surestep.doctor.source.training import (
    describe,
    find_actions,
    options_of,
)
from surestep.doctor.source.values import Call, Function, Instance, Value, last_name, walk

_STEPS = ("training_step", "compute_loss")
_LOSS_NAMES = ("Loss", "Criterion")
_MODULES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "KLDivLoss": "kl_div",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
}


@dataclass(frozen=True, eq=False)
class SourceLoss:
    """A loss that is computed.

    Attributes:
        name: of the function: "cross_entropy" for `nn.CrossEntropyLoss()` too.
        event: the call that computes it.
        input: what the model answers.
        target: what is compared with it.
        settings: the call that has the options, such as `reduction`.
    """

    name: str
    event: Event
    input: Value
    target: Value
    settings: Call

    def option(self, name: str) -> Value | None:
        """Return an option that is given by its name."""
        return self.settings.keywords.get(name)

    def describe_input(self, origin: Origin) -> str:
        """Return the start of a sentence that says which operation computed the input."""
        text, result = describe_source(self.written[0]), describe(origin.value)
        subject = "The input" if text == result else f"`{text}`"
        return f"{subject} is the result of `{result}`"

    @property
    def written(self) -> tuple[ast.AST | None, ast.AST | None]:
        """The expressions of the input and the target, as they are in the call."""
        found = [self.input.node, self.target.node]
        if isinstance(self.event.node, ast.Call):
            found[: len(self.event.node.args[:2])] = self.event.node.args[:2]
            for word in self.event.node.keywords:
                if word.arg in ("input", "target"):
                    found["input target".split().index(word.arg)] = word.value
        return found[0], found[1]


def find_losses(trace: Trace, *names: str) -> list[SourceLoss]:
    """Return the losses with one of these names that a trace computes, in order."""
    return [loss for loss in _find_all_losses(trace) if loss.name in names]


@once_per_trace
def _find_all_losses(trace: Trace) -> list[SourceLoss]:
    found = (_find_loss(event) for event, _ in trace.calls)
    return [loss for loss in found if loss is not None]


def find_trained(trace: Trace) -> set[int]:
    """Return the identities of all values behind what a trace trains on.

    That is what `backward` is called on, what `training_step` returns, and what a module returns
    that is named as a loss.
    """
    actions = (action for action in find_actions(trace) if action.kind == "backward")
    roots = [action.target for action in actions if action.target is not None]
    for event in trace.events:
        if event.kind == "return" and event.stack and _returns_loss(event.stack[-1]):
            roots.append(event.value)
    return {id(value) for root in roots for value in walk(root)}


def _returns_loss(function: Function) -> bool:
    """Return whether what a function returns is trained on."""
    if function.name in _STEPS:
        return True
    owner = function.owner
    if not isinstance(owner, Instance) or not owner.cls.is_module:
        return False
    return function.name == "forward" and last_name(owner.cls).endswith(_LOSS_NAMES)


def _find_loss(event: Event) -> SourceLoss | None:
    call = event.call
    if call is None or call.has_unknown_arguments:
        return None
    settings: Call | None = call
    name = call.name
    if call.path == "()":
        settings = _find_module(call.receiver)
        name = "" if settings is None else _MODULES.get(settings.name, "")
    elif not call.path.startswith("torch."):
        return None
    given, target = call.argument(0, "input"), call.argument(1, "target")
    if given is None or target is None or settings is None or name not in _MODULES.values():
        return None
    return SourceLoss(name, event, given, target, settings)


def _find_module(called: Value | None) -> Call | None:
    """Return the call that made a module, if the source shows exactly one."""
    match options_of(called):
        case (Call() as made,) if made.path.startswith("torch.") and not made.has_unknown_arguments:
            return made
    return None
