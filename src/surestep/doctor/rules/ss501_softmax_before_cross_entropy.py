"""Cross-entropy gets probabilities, although it applies a softmax itself.

`cross_entropy` expects logits. With a softmax before it, the softmax is applied twice: the second
sees values between 0 and 1 only, so with C classes the loss cannot fall below log(1 + (C-1)/e), and
the gradients are small. Nothing fails: the loss falls slowly, and the accuracy stays too low.

`log_softmax` and `Categorical(logits=...)` expect logits too, and are treated in the same way.

A `log_softmax` before `cross_entropy` is superfluous, but it does not change the loss, so it is not
reported.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html

Wrong:

    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        probabilities = F.softmax(model(x), dim=1)
        loss = F.cross_entropy(probabilities, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        logits = model(x)
        confidence = F.softmax(logits, dim=1).amax(1).mean()
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.origins import name_origin
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.runtime.tensors import may_be_probabilities
from surestep.doctor.source.losses import SourceLoss, find_losses
from surestep.doctor.source.modules import reads_mode
from surestep.doctor.source.outputs import CATEGORICALS, Origin, Outputs
from surestep.doctor.source.trace import Program, Trace
from surestep.doctor.source.training import describe, is_function, options_of, tensor_of
from surestep.doctor.source.values import Call, Value
from surestep.doctor.source.wrapping import event_of
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "error"
FIX = "Give cross_entropy the logits, and apply softmax only where probabilities are needed."


def check(program: Program) -> Iterator[Problem]:
    """Find cross-entropies and logarithms of a softmax of what a softmax returned."""
    outputs = Outputs(program)
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy"):
            origin = outputs.some_are(loss.input, "softmax") or _find_in_branch(trace, loss)
            if origin is not None:
                yield at_event(
                    loss.event,
                    f"{loss.describe_input(origin)}, and cross-entropy applies softmax again.",
                    softmax_line=origin.line,
                    assumed=origin.assumed,
                )
        for event, call in trace.calls:
            origin = outputs.all_are(_find_logits(call), "softmax")
            if origin is not None:
                yield at_event(
                    event,
                    f"`{event.text}` gets `{describe(origin.value)}`, which are probabilities, and "
                    "applies softmax again.",
                    softmax_line=origin.line,
                )


def _find_in_branch(trace: Trace, loss: SourceLoss) -> Origin | None:
    """Return the softmax of an input that is replaced by it in a branch of the same function.

    The branch is not taken back: none of its conditions chooses the loss, and none is the mode.
    """
    for option in options_of(loss.input):
        event = event_of(trace, option) if is_function(option, "softmax") else None
        if event is None or (event.stack, event.loops) != (loss.event.stack, loss.event.loops):
            continue
        around = [branch for branch in event.branches if branch not in loss.event.branches]
        if len(loss.event.branches) + len(around) == len(event.branches) and not any(
            branch.is_guard or reads_mode(branch.test) for branch in around
        ):
            chosen = f"`{describe(around[-1].test)}` is {around[-1].is_taken} in a run."
            return Origin("softmax", option, assumed=chosen)
    return None


def _find_logits(call: Call) -> Value | None:
    """Return what is given where logits are expected, apart from a cross-entropy."""
    if call.path in CATEGORICALS:
        return call.argument(1, "logits")
    if is_function(call, "log_softmax"):
        return tensor_of(call)
    return call.argument(0, "input") if is_function(call, "LogSoftmax") else None


class SoftmaxBeforeCrossEntropyWatcher(Watcher):
    """Check the operation that computed the input of a cross-entropy."""

    FUNCTIONS = ("cross_entropy", "log_softmax")
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        tensor = call["input"]
        if tensor.dim() > 1:
            if tensor.requires_grad:
                has_softmax = name_origin(tensor) == "Softmax"
            else:
                has_softmax = may_be_probabilities(tensor, 1)
            self._tally.add(run, call.name if has_softmax else "")

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"The input of {seen.reason} was the result of a softmax in {seen.mistakes} of "
                f"{self._tally.calls} calls, and {seen.reason} applies softmax again.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
            )
