"""The targets of a loss are not of the form that it expects.

`binary_cross_entropy_with_logits` expects targets between 0 and 1, and takes class indices such as
7, or -1 and 1, without an error. Losses with a margin expect -1 and 1, and 0 and 1 make half of the
samples count for nothing. `cross_entropy` expects class probabilities that sum to 1 if targets are
floats: with several ones in a row, the classes compete although all of them are right. A prediction
of shape (N,) with float targets of shape (N,) is one sample of N classes for it, and no batch.

A run of `surestep train` also compares class indices with the number of outputs. An index without
an output stops a step, on a GPU with an assertion that does not name the sample. Usual causes are
classes that are counted from 1, and a padding value that the loss does not ignore.

Losses with weights or `reduction="none"` are not reported: you may mask the other targets.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html

Wrong:

    import torch
    from torch import nn

    model = nn.Linear(4, 1)
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        x, labels = torch.randn(32, 4), torch.randint(5, (32, 1))
        loss = criterion(model(x), labels.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Right:

    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor


SEVERITY = "error"
REVIEWED = True
FIX = "Convert the targets to what the loss expects, or use the loss for these targets."
_FEWEST = 3  # calls: fewer may be a test of a script
_LOWEST, _HIGHEST = -0.5, 1.5  # labels of GANs are smoothed to a little more than 1
_ROUNDING = 1e-3
_BINARY = ("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")
_SIGNED = (
    *("soft_margin_loss", "cosine_embedding_loss"),
    *("hinge_embedding_loss", "margin_ranking_loss"),
)


class TargetsOutOfRangeOrTypeWatcher(Watcher):
    """Check the range of targets, and what they sum to."""

    FUNCTIONS = ("cross_entropy", *_BINARY, *_SIGNED)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        if not call.result.requires_grad:
            return
        is_masked = call.arguments.get("weight") is not None or call["reduction"] == "none"
        if is_masked and call.name in _BINARY:
            return
        found = _check_targets(call)
        if found is None:
            self._tally.add(run)
        else:
            self._tally.add(run, f"the targets of {call.name} {found[0]}", found[1])

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            if seen.mistakes >= _FEWEST:
                yield seen.report(
                    f"In {seen.mistakes} of {self._tally.calls} calls, {seen.reason}.",
                    {"calls": self._tally.calls, "mistakes": seen.mistakes},
                )


def _check_targets(call: TorchCall) -> tuple[str, Tensor] | None:
    """Return what may be wrong with targets, and whether it is."""
    target = call["target"].detach()
    if target.numel() == 0:
        return None
    if call.name in _BINARY:
        is_outside = (target.amin() < _LOWEST) | (target.amax() > _HIGHEST)
        return "were outside of 0 to 1", is_outside
    if call.name in _SIGNED:
        return "were 0 and 1 instead of -1 and 1", _is_zero_or_one(target) & (target == 0).any()
    if not target.is_floating_point():
        return None
    total = target.sum(-1 if target.dim() == 1 else 1)
    if target.dim() == 1:
        reason = f"had the shape ({len(target)},), which is one sample of {len(target)} classes"
        return reason, (total - 1).abs() > _ROUNDING
    return "had several classes in a row, which sum to more than 1", (
        _is_zero_or_one(target) & (total.amax() > _HIGHEST)
    )


def _is_zero_or_one(target: Tensor) -> Tensor:
    return ((target == 0) | (target == 1)).all()
