"""A binary cross-entropy gets probabilities for logits, or logits for probabilities.

`binary_cross_entropy_with_logits` applies a sigmoid itself. After a sigmoid, its input is between 0
and 1, so no prediction falls below 0.5, and the loss cannot become small. `binary_cross_entropy`
expects probabilities: on logits it is wrong, and fails only when one is below 0 or above 1.

Ignore it if something that the source does not show, such as a hook, changes the tensor.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html

Wrong:

    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(2, (8,)).float()
        output = torch.sigmoid(model(x)).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    import torch.nn.functional as F

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        x, y = torch.randn(8, 4), torch.randint(2, (8,)).float()
        logits = model(x).squeeze(1)
        accuracy = ((torch.sigmoid(logits) > 0.5) == y).float().mean()
        loss = F.binary_cross_entropy_with_logits(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.origins import LINEAR, PROBABILITIES, name_origin
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.outputs import Outputs
from surestep.doctor.source.trace import Program
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "error"
FIX = "Return logits from the model and use binary_cross_entropy_with_logits, without a sigmoid."
_WITH_LOGITS = "binary_cross_entropy_with_logits"


def check(program: Program) -> Iterator[Problem]:
    """Find losses of logits that get probabilities, and the other way around."""
    outputs = Outputs(program)
    for trace in program.traces:
        for loss in find_losses(trace, _WITH_LOGITS, "binary_cross_entropy"):
            if loss.name == _WITH_LOGITS:
                origin = outputs.some_are(loss.input, "sigmoid", "softmax")
                reason = "and this loss applies a sigmoid again"
            else:
                origin = outputs.some_are(loss.input, "linear", "conv")
                reason = "and this loss expects probabilities: a sigmoid is missing"
            if origin is not None:
                yield at_event(
                    loss.event,
                    f"{loss.describe_input(origin)}, {reason}.",
                    origin_line=origin.line,
                    assumed=origin.assumed,
                )


class SigmoidAndBceMismatchWatcher(Watcher):
    """Check the operation that computed the input of a binary cross-entropy."""

    FUNCTIONS = (_WITH_LOGITS, "binary_cross_entropy")
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        if not call["input"].requires_grad:
            return
        origin, reason = name_origin(call["input"]), ""
        if call.name == _WITH_LOGITS and origin in PROBABILITIES:
            reason = f"a {origin.lower()} computed its input, and this loss applies a sigmoid again"
        elif call.name != _WITH_LOGITS and origin in LINEAR:
            reason = "its input was the output of a layer without a sigmoid, not a probability"
        self._tally.add(run, f"`{call.name}`: {reason}" if reason else "")

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"In {seen.mistakes} of {self._tally.calls} calls of {seen.reason}.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
            )
