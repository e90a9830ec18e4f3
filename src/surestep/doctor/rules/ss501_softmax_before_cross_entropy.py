"""Cross-entropy gets probabilities, although it applies a softmax itself.

`cross_entropy` expects logits. With a softmax before it, the softmax is applied twice: the second
sees values between 0 and 1 only, so with C classes the loss cannot fall below log(1 + (C-1)/e), and
the gradients are small. Nothing fails: the loss falls slowly, and the accuracy stays too low.

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
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.outputs import Outputs
from surestep.doctor.source.trace import Program
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "error"
FIX = "Give cross_entropy the logits, and apply softmax only where probabilities are needed."


def check(program: Program) -> Iterator[Problem]:
    """Find cross-entropies of what a softmax returned."""
    outputs = Outputs(program)
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy"):
            origin = outputs.all_are(loss.input, "softmax")
            if origin is not None:
                yield at_event(
                    loss.event,
                    f"{loss.describe_input(origin)}, and cross-entropy applies softmax again.",
                    softmax_line=origin.line,
                )


class SoftmaxBeforeCrossEntropyWatcher(Watcher):
    """Check the operation that computed the input of a cross-entropy."""

    FUNCTIONS = ("cross_entropy",)
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
            self._tally.add(run, "the result of a softmax" if has_softmax else "")

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"The input of cross_entropy was {seen.reason} in {seen.mistakes} of "
                f"{self._tally.calls} calls, and cross-entropy applies softmax again.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
            )
