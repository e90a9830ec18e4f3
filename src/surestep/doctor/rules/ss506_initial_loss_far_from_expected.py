"""The first cross-entropy is far above that of equal probabilities.

A model that knows nothing gives all C classes about the same probability, and the cross-entropy is
log(C). A first loss of several times that means that the model is confident without a reason: the
last layer starts with too large weights, its outputs are multiplied, or probabilities, targets and
classes are mixed up. Training first has to unlearn this.

Ignore it if the model is trained already and the data is new to it.

Source: https://karpathy.github.io/2019/04/25/recipe/

Wrong:

    import torch
    from torch.nn.functional import cross_entropy

    model = torch.nn.Linear(16, 4)
    torch.nn.init.normal_(model.weight, std=10.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        x, y = torch.randn(64, 16), torch.randint(4, (64,))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()

Right:

    import torch
    from torch.nn.functional import cross_entropy

    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(64, 16)), torch.randint(4, (64,))).backward()
        optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.tally import Tally
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "info"
FIX = "Start the last layer with small weights, and check that the targets are classes from 0."
_TIMES = 3.0
_MOST_VALUES = 4_000_000  # of a prediction that are stored: logits of a language model may be 10**9


class InitialLossFarFromExpectedWatcher(Watcher):
    """Measure the first cross-entropy by itself."""

    FUNCTIONS = ("cross_entropy",)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._call = Tally()
        self._first: tuple[Tensor, Tensor] | None = None

    def on_call(self, run: Script, call: TorchCall) -> None:
        prediction, target = call["input"], call["target"]
        is_first = self._first is None and run.step == 0 and prediction.dim() > 1
        if is_first and prediction.requires_grad and not target.is_floating_point():
            samples = max(1, _MOST_VALUES * len(prediction) // max(1, prediction.numel()))
            step = -(-len(prediction) // samples)
            self._first = prediction.detach()[::step].clone(), target.detach()[::step].clone()
            self._call.add_here(run)

    def observe(self, run: Script) -> Iterator[Problem]:
        if self._first is None:
            return
        prediction, target = (tensor.cpu() for tensor in self._first)
        classes = prediction.shape[1]
        flat = prediction.float().movedim(1, -1).reshape(-1, classes)
        labels = target.reshape(-1)
        if classes < 2 or len(flat) != len(labels):
            return
        known = (labels >= 0) & (labels < classes)
        chosen = flat[known].log_softmax(1).gather(1, labels[known, None])
        loss = -chosen.mean().item() if len(chosen) else math.nan
        expected = math.log(classes)
        if loss > _TIMES * expected:
            yield self._call.report(
                f"The first cross-entropy was {loss:.3g}; equal probabilities of {classes} classes "
                f"have {expected:.3g}.",
                {"loss": loss, "expected": expected, "classes": classes},
            )
