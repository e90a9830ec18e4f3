"""A logarithm or a root is taken of something that becomes 0.

Softmax and sigmoid round to exactly 0 for large logits. Their logarithm is then -inf, and the loss
or its gradient is NaN; before that, the logarithm has lost its precision. The root of a distance
has an infinite gradient at 0, so the distances of samples to themselves make the gradient NaN.
Nothing fails: NaN spreads to all parameters with the next step.

Only values that are trained on are reported, and none that a small number is added to.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.log_softmax.html

Wrong:

    import torch

    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    probabilities = torch.softmax(model(x), dim=1)
    loss = -torch.log(probabilities)[range(8), y].mean()
    loss.backward()

Right:

    import torch

    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))
    loss = -torch.log_softmax(model(x), dim=1)[range(8), y].mean()
    loss.backward()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.origins import PROBABILITIES, name_node, name_origin
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.source.losses import find_trained
from surestep.doctor.source.outputs import Outputs
from surestep.doctor.source.trace import Event, Program
from surestep.doctor.source.training import describe, is_same, tensor_of
from surestep.doctor.source.values import Call, Collection, Constant, Item, Operation, Value
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "warning"
_MOST_VALUES = 1_000_000  # of a tensor that are compared with 0
FIX = "Use log_softmax or logsigmoid of the logits, clamp the value, or use torch.cdist."
_LOGS = ("log", "log2", "log10")
_SUMS = ("sum", "mean", "square", "pow")
_STABLE = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}


def check(program: Program) -> Iterator[Problem]:
    """Find logarithms of probabilities, and roots of distances that include 0."""
    outputs = Outputs(program)
    for trace in program.traces:
        trained = find_trained(trace)
        for event in trace.events:
            tensor = _tensor_of(event)
            if event.call is None or tensor is None or id(event.call) not in trained:
                continue
            if event.call.name in _LOGS:
                yield from _check_log(event, tensor, outputs)
            elif event.call.name == "sqrt" and _is_distance_to_itself(tensor):
                yield at_event(
                    event,
                    f"`{describe(event.call)}` is the distance of samples to themselves too: there "
                    "it is 0, and the gradient of the root is not finite.",
                )


def _tensor_of(event: Event) -> Value | None:
    call = event.call
    if call is None or not (call.is_method or call.path.startswith("torch.")):
        return None
    return tensor_of(call)


def _check_log(event: Event, tensor: Value, outputs: Outputs) -> Iterator[Problem]:
    match tensor:
        case Operation(operator="-", operands=(Constant(value=1), inner)):
            origin = outputs.all_are(inner, "sigmoid")
        case _:
            origin = outputs.all_are(tensor, "softmax", "sigmoid")
    if origin is not None:
        yield at_event(
            event,
            f"`{event.text}` is -inf where `{describe(origin.value)}` rounds to a "
            f"probability of 0 or 1; {_STABLE[origin.name]} computes it from the logits.",
            origin_line=origin.line,
        )


def _is_distance_to_itself(value: Value) -> bool:
    """Return whether a value is a sum of squares of `x[:, None] - x[None]`."""
    while isinstance(value, Call) and value.name in _SUMS:
        inner = tensor_of(value)
        if inner is None:
            return False
        value = inner
    if isinstance(value, Operation) and value.operator == "**":
        value = value.operands[0]
    if not isinstance(value, Operation) or value.operator != "-" or len(value.operands) != 2:
        return False
    left, right = (_without_new_axis(operand) for operand in value.operands)
    return left is not None and right is not None and is_same(left, right)


def _without_new_axis(value: Value) -> Value | None:
    """Return `x` of `x.unsqueeze(1)` or `x[:, None]`."""
    if isinstance(value, Call) and value.name == "unsqueeze":
        return tensor_of(value)
    if isinstance(value, Item):
        index = value.index.elements if isinstance(value.index, Collection) else [value.index]
        if any(isinstance(operand, Constant) and operand.value is None for operand in index):
            return value.base
    return None


class LogOrSqrtOfZeroWatcher(Watcher):
    """Check logarithms and roots whose gradients are used."""

    FUNCTIONS = ("log", "sqrt")
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        result, tensor = call.result, call["input"]
        if not result.requires_grad or tensor is None:
            return
        if call.name == "log" and _is_probability(tensor):
            self._add_if_trained(run, result, "log of a probability, which may round to 0,", None)
        elif 0 < tensor.numel() <= _MOST_VALUES:
            has_zero = (tensor.detach() == 0).any()
            self._add_if_trained(run, result, f"{call.name} of 0", has_zero)

    def _add_if_trained(
        self, run: Script, result: Tensor, reason: str, flag: Tensor | None
    ) -> None:
        """Count a call as soon as a gradient reaches its result."""
        seen = run.locate(), run.step + 1

        def count(_: Tensor) -> None:
            self._tally.add_seen(*seen, f"The gradient of the {reason} is used", flag)

        result.register_hook(count)

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"{seen.reason}, in {seen.mistakes} of the calls that were checked.",
                {"mistakes": seen.mistakes},
            )


def _is_probability(tensor: Tensor) -> bool:
    """Return whether a tensor is `p` or `1 - p` of a softmax or a sigmoid."""
    node: Any = tensor.grad_fn
    if node is not None and name_node(node) in ("Rsub", "Sub"):
        nodes = [entry[0] for entry in node.next_functions if entry[0] is not None]
        return len(nodes) == 1 and name_node(nodes[0]) == "Sigmoid"
    return name_origin(tensor) in PROBABILITIES
