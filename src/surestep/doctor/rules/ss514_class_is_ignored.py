"""A loss of two classes ignores one of them.

`ignore_index=0` leaves out the padding of a sequence, whose token is 0. If the same loss is used
for a question with two answers, it leaves out all samples of one of them. The model learns to give
the other answer always, and the loss falls to 0.

Ignore it if the class is only padding.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html

Wrong:

    import torch
    from torch import nn

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    for _ in range(5):
        loss = criterion(model(torch.randn(32, 4)), torch.randint(2, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    for _ in range(5):
        loss = criterion(model(torch.randn(32, 4)), torch.randint(2, (32,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

from collections.abc import Iterator

from surestep.doctor.problem import Problem, at_event
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.source.dimensions import shape_of
from surestep.doctor.source.losses import find_losses
from surestep.doctor.source.trace import Program
from surestep.doctor.source.values import Constant
from surestep.doctor.watcher import Script, TorchCall, Watcher

SEVERITY = "error"
FIX = "Use a loss without ignore_index for these targets."
_FEWEST = 3  # calls


def check(program: Program) -> Iterator[Problem]:
    """Find losses of two classes with an index that is one of them."""
    for trace in program.traces:
        for loss in find_losses(trace, "cross_entropy", "nll_loss"):
            ignored, shape = loss.option("ignore_index"), shape_of(loss.input)
            if not isinstance(ignored, Constant) or shape is None or len(shape) < 2:
                continue
            if shape[1] == 2 and ignored.value in (0, 1):
                yield at_event(
                    loss.event,
                    f"`{loss.event.text}` leaves out all samples of class {ignored.value}, one of "
                    "two.",
                    loss_line=loss.settings.line,
                )


class ClassIsIgnoredWatcher(Watcher):
    """Find losses of two classes that ignore one of them."""

    FUNCTIONS = ("cross_entropy", "nll_loss")
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        ignored, scores = call["ignore_index"], call["input"]
        is_one = scores.dim() > 1 and scores.shape[1] == 2 and ignored in (0, 1)
        self._tally.add(run, f"class {ignored}" if is_one else "")

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            if seen.mistakes >= _FEWEST:
                yield seen.report(
                    f"A loss of two classes left out all samples of {seen.reason} in "
                    f"{seen.mistakes} calls.",
                    {"calls": seen.mistakes},
                )
