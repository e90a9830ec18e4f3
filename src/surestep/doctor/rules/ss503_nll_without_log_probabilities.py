"""The negative log-likelihood gets logits or probabilities instead of log-probabilities.

`nll_loss` takes no logarithm and normalises nothing: it returns minus the value at the class of the
target. On logits, the loss falls without limit when all of them grow. On probabilities, it is minus
the probability, whose gradient vanishes for samples that are classified badly. Nothing fails: the
loss falls in both cases.

Ignore it if minus the mean probability is the loss that you want.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html

Wrong:

    import torch
    import torch.nn.functional as F

    rnn, head = torch.nn.LSTM(4, 8, batch_first=True), torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
    for _ in range(5):
        x, y = torch.randn(2, 5, 4), torch.randint(3, (2, 5))
        logits = head(rnn(x)[0])
        loss = F.nll_loss(logits.reshape(-1, 3), y.reshape(-1))
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
        loss = F.nll_loss(F.log_softmax(model(x), dim=1), y)
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
FIX = "Give nll_loss the result of log_softmax, or give cross_entropy the logits."


def check(program: Program) -> Iterator[Problem]:
    """Find negative log-likelihoods of what no logarithm was taken of."""
    outputs = Outputs(program)
    for trace in program.traces:
        for loss in find_losses(trace, "nll_loss"):
            origin = outputs.some_are(loss.input, "softmax", "sigmoid", "linear", "conv")
            if origin is None:
                continue
            kind = "logits" if origin.name in ("linear", "conv") else "probabilities"
            yield at_event(
                loss.event,
                f"{loss.describe_input(origin)}: {kind}, and this loss expects log-probabilities.",
                origin_line=origin.line,
                assumed=origin.assumed,
            )


class NllWithoutLogProbabilitiesWatcher(Watcher):
    """Check the operation that computed the input of a negative log-likelihood."""

    FUNCTIONS = ("nll_loss",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        if not call["input"].requires_grad:
            return
        origin, reason = name_origin(call["input"]), ""
        if origin in PROBABILITIES:
            reason = f"probabilities, the result of a {origin.lower()},"
        elif origin in LINEAR:
            reason = "logits"
        self._tally.add(run, reason)

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            yield seen.report(
                f"nll_loss got {seen.reason} in {seen.mistakes} of {self._tally.calls} calls, and "
                "it expects log-probabilities.",
                {"calls": self._tally.calls, "mistakes": seen.mistakes},
            )
