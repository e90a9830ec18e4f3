"""The model cannot give what its loss asks for.

A sigmoid or a softmax is between 0 and 1, and a tanh between -1 and 1: a regression loss with
targets outside of that cannot become small. A softmax of one output is always 1, and the
cross-entropy of one class always 0: both have no gradient. Nothing fails: the loss falls a little,
or stays where it is.

Ignore it if the targets outside of the range are to be clipped by the model on purpose.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html

Wrong:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        x = torch.randn(32, 4)
        price = 200 + 50 * x[:, :2].sum(1, keepdim=True)
        optimizer.zero_grad()
        criterion(model(x), price).backward()
        optimizer.step()

Right:

    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        pixels = torch.rand(8, 16)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(pixels), pixels + 0.01 * torch.randn(8, 16)).backward()
        optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.problem import Problem
from surestep.doctor.runtime.origins import find_origin, name_node, read_dim
from surestep.doctor.runtime.tally import LineTally
from surestep.doctor.watcher import Script, TorchCall, Watcher

if TYPE_CHECKING:
    from torch import Tensor

SEVERITY = "error"
FIX = "Remove the activation, scale the targets to its range, or give the model 2 outputs or a BCE."
_FEWEST = 3  # calls: the first batches may be a test of a script
_SHARE = 0.1  # of the targets that no output can reach
_MARGIN = 0.05  # outside of the range: noise may be added to targets
_REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_RANGES = {"Sigmoid": (0.0, 1.0), "Softmax": (0.0, 1.0), "Tanh": (-1.0, 1.0)}


class LossNotForTaskWatcher(Watcher):
    """Compare the range of predictions with that of their targets."""

    FUNCTIONS = ("cross_entropy", *_REGRESSIONS, *_BINARY)
    SAMPLED = ("on_call",)

    def __init__(self) -> None:
        self._tally = LineTally()

    def on_call(self, run: Script, call: TorchCall) -> None:
        prediction = call["input"]
        if not prediction.requires_grad:
            return
        if call.name == "cross_entropy":
            is_one_class = prediction.dim() > 1 and prediction.shape[1] == 1
            self._tally.add(run, "the loss was 0 because there is one class" * is_one_class)
            return
        node = find_origin(prediction)
        name = "" if node is None else name_node(node)
        if name == "Softmax" and _is_of_one(node):
            self._tally.add(run, "the prediction was 1, the softmax of one output")
        elif name in _RANGES and call.name in _REGRESSIONS:
            low, high = _RANGES[name]
            reason = (
                f"the targets were outside of {low:g} to {high:g}, the range of the {name.lower()} "
                f"that computed the prediction of {call.name}"
            )
            self._tally.add(run, reason, _is_out_of_range(call["target"].detach(), low, high))
        else:
            self._tally.add(run)

    def observe(self, run: Script) -> Iterator[Problem]:
        for seen in self._tally:
            if seen.mistakes >= _FEWEST:
                yield seen.report(
                    f"In {seen.mistakes} of {self._tally.calls} calls, {seen.reason}.",
                    {"calls": self._tally.calls, "mistakes": seen.mistakes},
                )


def _is_of_one(softmax: Any) -> bool:
    """Return whether a softmax normalised over a dimension of size 1."""
    sizes = softmax._saved_result.shape
    return len(sizes) > 0 and sizes[read_dim(softmax)] == 1


def _is_out_of_range(target: Tensor, low: float, high: float) -> Tensor:
    is_outside = (target < low - _MARGIN) | (target > high + _MARGIN)
    return is_outside.float().mean() > _SHARE
